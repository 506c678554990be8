"""Gate `golden`: is the golden itself fit to judge by?

Compared: the shapes of its arrays and that every number is finite, its digests again, the checkpoint's digest, every
generated id with the lowest-id argmax of its stored logits, the order of the stored logits, text with ids where the
tokenizers library is installed, chat messages with the stored text where transformers is, chains for short periods and
loops, and the simulated index faults its chains must expose, each at several positions (`golden/sensitivity.py` and
`regularity.py` say how much, and where that was measured).
Exact. It cannot see a reference that is wrong in itself: goldens are only as right as `oracle/kolibri1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from oracle.errors import KolibriError
from oracle.golden.evidence import PromptEvidence
from oracle.golden.format import GoldenDocument
from oracle.golden.recipe import PromptSpec
from oracle.golden.regularity import SHORTEST_HALF_LOOP, regular
from oracle.golden.sensitivity import LEAST_SHARE, Exposure, Sensitivity, count, exposures, weakest
from oracle.judge.gate import Case, Finding, Judgement
from oracle.judge.soundness import golden_findings
from oracle.kolibri1.tokenizer import open_tokenizer, tokenizer_available, transformers_available
from oracle.mapped_pages import give_back


class GoldenGate:
    name = "golden"
    definition = {
        "version": 3,
        "metric": "shapes, finiteness, digests, stored argmax, order of logits, ids of text, text of messages, regularity",
        "statistic": "equality",
        "least share of ids that a simulated fault changes": LEAST_SHARE,
    }
    blind_to = (
        "a reference that computes Kolibri-1 wrongly; text and ids where the tokenizers library is missing; messages and text "
        "where transformers is"
    )
    needs_alignment = False

    def judge(self, case: Case) -> Judgement:
        if unsound := golden_findings(case):
            return Judgement(0, unsound)
        document = case.golden.document
        findings: list[Finding] = []
        for what, expected, got in (
            ("digest", document.digest, case.once_for_document("digest", document.content_digest)),
            ("recipe digest", document.recipe_digest, case.once_for_document("recipe digest", document.recipe.digest)),
            ("checkpoint digest", document.checkpoint_digest, case.checkpoint.digest()),
            ("digest that the run names", document.digest, case.run.golden_digest),
        ):
            if expected != got:
                findings.append(Finding(f"the golden's {what} does not hold", worst=got, allowed=expected))
        compared = 4
        for prompt in case.golden.prompts:
            findings += case.once_for_prompt(prompt, "chain", partial(_chain_findings, prompt))
            compared += len(prompt.fed)
        exposed = case.once_for_chains("exposure", partial(_exposed, case.golden.prompts))
        compared += exposed.counted.faults
        if exposed.weak:
            worst = exposed.weakest
            changed = f"{worst.changed} of {worst.compared} ids change"
            headline = "the chains would not expose an index fault"
            allowed = f"at least {LEAST_SHARE:.1%}"
            findings.append(Finding(headline, worst.fault, changed, allowed, exposed.weak, exposed.counted.faults))
        read, texts = _text_findings(case)
        rendered, chats = _chat_findings(case)
        return Judgement(
            compared + texts + chats,
            (*findings, *read, *rendered),
            {
                "sensitivity": str(exposed.counted),
                "weakest_fault": str(exposed.weakest),
                "texts_tokenized": texts,
                "tokenizer": _tokenizer(case),
                "chats_rendered": chats,
                "chat_template": _chat_template(case),
            },
        )

    def plants(self, case: Case) -> dict[str, Case]:
        """The first prompt recorded off by one, out of order, too regular; the document edited, or another checkpoint's.

        Where chains are long enough: one that ends in a loop, and one that answers like another prompt's. Where they are
        compared: texts with another first id, and chats with another first message under digests that hold.
        """
        golden = case.golden
        first = golden.prompts[0]
        document = golden.document

        def with_first(**changes: Any) -> Case:
            return case.with_golden(prompts=(replace(first, **changes), *golden.prompts[1:]))

        def with_document(edited: GoldenDocument) -> Case:
            return case.with_golden(document=edited)

        infinite = first.logsumexp.copy()
        infinite[0] = np.inf
        constant = np.repeat(first.top_ids[-1:], len(first.fed), axis=0)
        swapped = [0, 2, 1, *range(3, first.top_ids.shape[1])]
        tied = first.top_logits.copy()
        tied[:, 1] = tied[:, 2]
        lowest_last = first.top_ids.copy()
        lowest_last[:, 1:3] = -np.sort(-lowest_last[:, 1:3], axis=1)
        planted = {
            "a chain one late": with_first(generated=(*first.generated[1:], first.generated[0])),
            "stored logits out of order": with_first(top_logits=first.top_logits[:, swapped]),
            "equal logits, the highest id first": with_first(top_logits=tied, top_ids=lowest_last),
            "an infinite number": with_first(logsumexp=infinite),
            "a constant chain": with_first(generated=(int(constant[0, 0]),) * len(first.generated), top_ids=constant),
            "an edited document": with_document(document.model_copy(update={"probe_prompt": "another"})),
            "another checkpoint's": with_document(document.model_copy(update={"checkpoint_digest": "sha256:0"}).sealed()),
            "another golden's run": case.with_run(golden_digest="sha256:0"),
        }
        if _tokenizes(case) and any(p.text is not None for p in golden.prompts):
            vocabulary = case.checkpoint.config.vocab_size
            others = tuple(_with_another_id(p, vocabulary) for p in golden.prompts)
            planted["ids that their texts do not give"] = case.with_golden(prompts=others)
        names = {p.name for p in golden.prompts}  # not by `_chats`: a comparison that finds none must not lose its control too
        if _renders(case) and any(spec.messages is not None and spec.name in names for spec in document.recipe.prompts):
            recipe = document.recipe.model_copy(update={"prompts": tuple(map(_with_other_messages, document.recipe.prompts))})
            edited = document.model_copy(update={"recipe": recipe, "recipe_digest": recipe.digest()}).sealed()
            planted["messages that do not give their texts"] = with_document(edited).with_run(golden_digest=edited.digest)
        return planted | _regular_plants(case)


def _regular_plants(case: Case) -> dict[str, Case]:
    """Chains that are the argmax of their logits, and would hide a fault all the same."""
    longest, *others = sorted(case.golden.prompts, key=lambda p: -len(p.generated))
    planted, chain = {}, longest.generated
    if len(chain) >= SHORTEST_HALF_LOOP:
        half = len(chain) // 2
        looping = (*chain[:half], *(chain[:2] * len(chain))[: len(chain) - half])
        planted["a chain that ends in a loop"] = _with_chain(case, longest, looping)
    if others:
        answer = list(chain[: len(others[0].generated)])
        if len(answer) * LEAST_SHARE > 1:  # one id that differs is not enough
            answer[-1] = answer[0]
        planted["an answer given twice"] = _with_chain(case, others[0], answer)
    return planted


def _with_chain(case: Case, prompt: PromptEvidence, chain: Sequence[int]) -> Case:
    """The prompt with another chain, and stored ids whose argmax it is."""
    start, top_ids = len(prompt.prompt_ids) - 1, prompt.top_ids.copy()
    for row, token in zip(top_ids[start:], chain, strict=True):
        row[:] = [token, *(i for i in row.tolist() if i != token)][: len(row)]
    changed = replace(prompt, generated=tuple(chain), top_ids=top_ids)
    prompts = tuple(changed if p.name == prompt.name else p for p in case.golden.prompts)
    return replace(case, golden=replace(case.golden, prompts=prompts))


class _Exposed(NamedTuple):
    """What the simulated faults come to: how many are exposed, how many of them only weakly, and the weakest."""

    counted: Sensitivity
    weak: int
    weakest: Exposure


def _exposed(prompts: Sequence[PromptEvidence]) -> _Exposed:
    found = exposures({p.name: (p.prompt_ids, p.generated) for p in prompts})
    return _Exposed(count(found), sum(exposure.weak for exposure in found), weakest(found))


def _chain_findings(prompt: PromptEvidence) -> list[Finding]:
    findings = []
    chain, start = np.array(prompt.generated), len(prompt.prompt_ids) - 1
    predicted = prompt.argmax[start:]
    if (wrong := predicted != chain).any():
        first = int(wrong.argmax())
        findings.append(
            Finding(
                "a generated id is not the argmax of its stored logits",
                f"{prompt.name}[{start + first}]",
                f"{chain[first]} for {predicted[first]}",
                "equal",
                int(wrong.sum()),
                len(wrong),
            )
        )
    falling = np.diff(prompt.top_logits, axis=1)
    rising_ids = np.diff(prompt.top_ids, axis=1) > 0
    if (wrong := (falling > 0) | ((falling == 0) & ~rising_ids)).any():
        row = int(wrong.any(axis=1).argmax())
        findings.append(
            Finding(
                "stored logits are not in falling order, lowest id first",
                f"{prompt.name}[{row}]",
                count=int(wrong.sum()),
                of=wrong.size,
            )
        )
    if why := regular(prompt.generated):
        findings.append(Finding(f"the chain {why}", prompt.name))
    give_back(vars(prompt).values())
    return findings


_REPLAYED = "a replay compares no texts: `kolibri-oracle golden verify` does"


def _tokenizes(case: Case) -> bool:
    return case.texts and tokenizer_available()


def _renders(case: Case) -> bool:
    return case.texts and transformers_available()


def _tokenizer(case: Case) -> str:
    """Whether texts are tokenized again, or why not."""
    if not case.texts:
        return _REPLAYED
    return "present" if tokenizer_available() else "not installed: texts not compared"


def _text_findings(case: Case) -> tuple[list[Finding], int]:
    texts = [p for p in case.golden.prompts if p.text is not None]
    if not texts or not _tokenizes(case):
        return [], 0
    try:
        encode = open_tokenizer(case.checkpoint.folder)
    except KolibriError as error:
        return [Finding(f"the tokenizer cannot be read: {error}", verdict="incomplete")], 0
    wrong = [p.name for p in texts if p.text is not None and encode(p.text) != p.prompt_ids]
    findings = [Finding("a prompt's text no longer gives its ids", wrong[0], count=len(wrong), of=len(texts))] if wrong else []
    return findings, len(texts)


def _chats(case: Case) -> list[tuple[PromptEvidence, PromptSpec]]:
    """The chat prompts, each with what the recipe says of it."""
    specs = {spec.name: spec for spec in case.golden.document.recipe.prompts if spec.messages is not None}
    return [(prompt, specs[prompt.name]) for prompt in case.golden.prompts if prompt.name in specs]


def _chat_template(case: Case) -> str:
    """Whether chats are rendered again, or why not."""
    if not _chats(case):
        return "not needed: no chat prompts"
    if not case.texts:
        return _REPLAYED
    return "present" if transformers_available() else "transformers is not installed: chats not rendered"


def _chat_findings(case: Case) -> tuple[list[Finding], int]:
    chats = _chats(case)
    if not chats or not _renders(case):
        return [], 0
    from oracle.kolibri1.transformers_tokenizer import TransformersTokenizer

    try:
        tokenizer = TransformersTokenizer(case.checkpoint.folder)
        wrong = [p.name for p, spec in chats if tokenizer.render(spec.turns, spec.reasoning_effort) != p.text]
    except KolibriError as error:
        return [Finding(f"the chat prompts cannot be rendered: {error}", verdict="incomplete")], 0
    headline = "a chat prompt's messages no longer give its text"
    return [Finding(headline, wrong[0], count=len(wrong), of=len(chats))] if wrong else [], len(chats)


def _with_another_id(prompt: PromptEvidence, vocabulary: int) -> PromptEvidence:
    """A prompt made of a text, with another first id; any other prompt as it is."""
    if prompt.text is None:
        return prompt
    return replace(prompt, prompt_ids=((prompt.prompt_ids[0] + 1) % vocabulary, *prompt.prompt_ids[1:]))


def _with_other_messages(spec: PromptSpec) -> PromptSpec:
    """A chat prompt whose first message has one letter more; any other prompt as it is."""
    if spec.messages is None:
        return spec
    first = spec.messages[0].model_copy(update={"content": f"{spec.messages[0].content}x"})
    return spec.model_copy(update={"messages": (first, *spec.messages[1:])})
