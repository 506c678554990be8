"""Gate `golden`: a golden that could not expose a fault, or belongs to something else, is not judged by."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judge_cases import changed, headlines, with_chat, with_evidence, with_run, without_chats

import oracle.judge.golden_gate as golden_gate
from oracle.errors import CheckpointError
from oracle.golden.evidence import PromptEvidence
from oracle.golden.recipe import Message
from oracle.judge.gate import Case
from oracle.judge.golden_gate import GoldenGate
from oracle.kolibri1.checkpoint import Checkpoint

GATE = GoldenGate()
NOT_ARGMAX = "a generated id is not the argmax of its stored logits"
ORDER = "stored logits are not in falling order, lowest id first"
CANNOT_EXPOSE = "the chains would not expose an index fault"


def with_document(case: Case, **changes: Any) -> Case:
    return replace(case, golden=replace(case.golden, document=case.golden.document.model_copy(update=changes)))


def with_chain(case: Case, prompt: PromptEvidence, chain: list[int]) -> Case:
    """The prompt's chain replaced, with stored logits whose argmax it is."""
    top_ids, start = prompt.top_ids.copy(), len(prompt.prompt_ids) - 1
    for row, token in zip(top_ids[start:], chain, strict=True):
        others = [i for i in row.tolist() if i != token]
        row[:] = [token, *others][: len(row)]
    return with_evidence(case, prompt, generated=tuple(chain), top_ids=top_ids)


def with_logits(case: Case, row: int, logits: Callable[[np.ndarray], None]) -> Case:
    prompt = case.golden.prompts[0]
    top_logits = prompt.top_logits.copy()
    logits(top_logits[row])
    return with_evidence(case, prompt, top_logits=top_logits)


def test_the_shipped_golden_is_fit_to_judge_by(case: Case) -> None:
    judgement = GATE.judge(case)
    assert (judgement.verdict, judgement.findings) == ("pass", ())
    assert judgement.compared >= 4 + case.golden.positions + case.golden.document.sensitivity.faults


def test_its_planted_fault_is_found(case: Case) -> None:
    found = {name: headlines(GATE.judge(planted)) for name, planted in GATE.plants(case).items()}
    assert NOT_ARGMAX in found["a chain one late"]
    assert found["stored logits out of order"] == ["stored logits are not in falling order, lowest id first"]
    assert any("has period 1" in headline for headline in found["a constant chain"])
    assert [h.split(" in ")[0] for h in found["a chain that ends in a loop"]] == ["the chain repeats with period 2"]
    assert found["an answer given twice"] == [CANNOT_EXPOSE]
    assert found["an edited document"] == ["the golden's digest does not hold"]
    assert "the golden's checkpoint digest does not hold" in found["another checkpoint's"]
    assert found["another golden's run"] == ["the golden's digest that the run names does not hold"]


@pytest.mark.parametrize("shift", [1, -1])
def test_a_chain_recorded_one_late_or_one_early_is_found_at_its_place(case: Case, shift: int) -> None:
    prompt = case.golden.prompts[1]
    chain = (*prompt.generated[shift:], *prompt.generated[:shift])
    judgement = GATE.judge(with_evidence(case, prompt, generated=chain))
    [finding] = [f for f in judgement.findings if f.headline == NOT_ARGMAX]
    wrong = [i for i, (a, b) in enumerate(zip(chain, prompt.generated, strict=True)) if a != b]
    assert finding.where == f"{prompt.name}[{len(prompt.prompt_ids) - 1 + wrong[0]}]"
    assert (finding.count, finding.of, finding.verdict) == (len(wrong), len(chain), "fail")


def test_a_run_that_names_another_golden_is_refused(case: Case) -> None:
    [finding] = GATE.judge(with_run(case, golden_digest="sha256:" + "0" * 64)).findings
    assert finding.headline == "the golden's digest that the run names does not hold"
    assert (finding.worst, finding.allowed) == ("sha256:" + "0" * 64, case.golden.digest)


def test_a_checkpoint_with_one_other_byte_is_another_checkpoint(case: Case, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(case.checkpoint.folder, other, ignore=shutil.ignore_patterns("golden"))
    shard = min(other.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    [finding] = GATE.judge(replace(case, checkpoint=Checkpoint.open(other))).findings
    assert finding.headline == "the golden's checkpoint digest does not hold"


def test_a_document_edited_after_it_was_signed_is_found(case: Case) -> None:
    names = [p.name for p in case.golden.prompts]
    other = next(name for name in names if name != case.golden.document.probe_prompt)
    assert headlines(GATE.judge(with_document(case, probe_prompt=other))) == ["the golden's digest does not hold"]


def test_a_recipe_other_than_the_one_signed_is_found(case: Case) -> None:
    recipe = case.golden.document.recipe.model_copy(update={"top_n": 8})
    assert "the golden's recipe digest does not hold" in headlines(GATE.judge(with_document(case, recipe=recipe)))


@pytest.mark.parametrize("period", [1, 2, 12])
def test_a_chain_of_short_period_is_refused_though_it_is_its_own_argmax(case: Case, period: int) -> None:
    prompt = max(case.golden.prompts, key=lambda p: len(p.generated))
    pattern = sorted(set(prompt.generated))[:period]
    chain = (pattern * len(prompt.generated))[: len(prompt.generated)]
    judgement = GATE.judge(with_chain(case, prompt, chain))
    assert f"the chain has period {period} and can show no index fault" in headlines(judgement)
    assert NOT_ARGMAX not in headlines(judgement)


def test_constant_chains_hide_index_faults_and_the_gate_names_one(case: Case) -> None:
    prompt = case.golden.prompts[0]
    judgement = GATE.judge(with_chain(case, prompt, [prompt.generated[0]] * len(prompt.generated)))
    [finding] = [f for f in judgement.findings if f.headline == CANNOT_EXPOSE]
    assert finding.where.startswith(f"{prompt.name}: ")
    assert 0 < finding.count < finding.of


def test_equal_logits_are_stored_lowest_id_first(case: Case) -> None:
    prompt, row = case.golden.prompts[0], 0
    first, second = sorted(prompt.top_ids[row, -2:].tolist())
    tied = with_logits(case, row, lambda logits: logits.__setitem__(-2, logits[-1]))
    right = with_evidence(tied, prompt, top_ids=changed(prompt.top_ids, (row, slice(-2, None)), (first, second)))
    wrong = with_evidence(tied, prompt, top_ids=changed(prompt.top_ids, (row, slice(-2, None)), (second, first)))
    assert GATE.judge(right).verdict == "pass"
    [finding] = GATE.judge(wrong).findings
    assert (finding.headline, finding.where, finding.count) == (ORDER, f"{prompt.name}[{row}]", 1)


def test_an_exact_tie_decided_for_the_higher_id_is_found(case: Case) -> None:
    prompt = case.golden.prompts[0]
    row = len(prompt.prompt_ids) - 1
    low, high = sorted(prompt.top_ids[row, :2].tolist())
    tied = with_logits(case, row, lambda logits: logits.__setitem__(0, logits[1]))
    ordered = with_evidence(tied, prompt, top_ids=changed(prompt.top_ids, (row, slice(0, 2)), (low, high)))
    for token, expected in ((low, []), (high, [NOT_ARGMAX])):
        chosen = with_evidence(ordered, prompt, generated=(token, *prompt.generated[1:]))
        assert headlines(GATE.judge(chosen)) == expected


def test_logits_that_rise_along_a_row_are_found(case: Case) -> None:
    rising = with_logits(case, 2, lambda logits: logits.__setitem__(-1, logits[-2] + 1))
    assert headlines(GATE.judge(rising)) == [ORDER]


def test_text_that_no_longer_gives_its_ids_is_found(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {p.text: p.prompt_ids for p in case.golden.prompts}
    monkeypatch.setattr(golden_gate, "tokenizer_available", lambda: True)
    monkeypatch.setattr(golden_gate, "open_tokenizer", lambda _folder: ids.__getitem__)
    texts = [p for p in case.golden.prompts if p.text is not None]
    judgement = GATE.judge(case)
    assert (judgement.verdict, judgement.measured["texts_tokenized"]) == ("pass", len(texts))
    ids[texts[-1].text] = (*texts[-1].prompt_ids, 0)
    [finding] = GATE.judge(case).findings
    assert (finding.headline, finding.where) == ("a prompt's text no longer gives its ids", texts[-1].name)
    assert (finding.count, finding.of) == (1, len(texts))


def test_a_tokenizer_that_cannot_be_read_is_incomplete_and_not_green(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: Path) -> None:
        raise CheckpointError("tokenizer.json is damaged")

    monkeypatch.setattr(golden_gate, "tokenizer_available", lambda: True)
    monkeypatch.setattr(golden_gate, "open_tokenizer", refuse)
    judgement = GATE.judge(case)
    assert judgement.verdict == "incomplete"
    assert "damaged" in judgement.findings[0].headline


def test_a_missing_tokenizers_library_is_said_aloud(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_gate, "tokenizer_available", lambda: False)
    measured = GATE.judge(without_chats(case)).measured
    assert measured == {
        "sensitivity": "502 of 502 (100.0%)",
        "weakest_fault": "sums-en: answered as copying (8 of 32 ids)",
        "texts_tokenized": 0,
        "tokenizer": "not installed: texts not compared",
        "chats_rendered": 0,
        "chat_template": "not needed: no chat prompts",
    }


QUESTION = (Message(role="user", content="Who?"),)


@pytest.fixture
def chat(case: Case, monkeypatch: pytest.MonkeyPatch) -> Case:
    """A golden whose first prompt is a chat, where nothing can tell its ids from its text."""
    monkeypatch.setattr(golden_gate, "tokenizer_available", lambda: False)
    return with_chat(case, QUESTION, "low", "user: Who?", list(range(20)))


def test_missing_transformers_leaves_chats_out_and_is_said_aloud(chat: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_gate, "transformers_available", lambda: False)
    judgement = GATE.judge(chat)
    assert judgement.verdict == "pass"
    assert judgement.measured["chats_rendered"] == 0
    assert judgement.measured["chat_template"] == "transformers is not installed: chats not rendered"
    assert "messages that do not give their texts" not in GATE.plants(chat)


def test_a_fault_is_planted_in_texts_and_in_chats_only_where_they_are_compared(
    case: Case, chat: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, chats = "ids that their texts do not give", "messages that do not give their texts"
    for tokenizer in (False, True):
        for transformers in (False, True):
            monkeypatch.setattr(golden_gate, "tokenizer_available", lambda tokenizer=tokenizer: tokenizer)
            monkeypatch.setattr(golden_gate, "transformers_available", lambda transformers=transformers: transformers)
            assert (texts in GATE.plants(chat), chats in GATE.plants(chat)) == (tokenizer, transformers)
            plain = GATE.plants(without_chats(case))
            assert (texts in plain, chats in plain) == (tokenizer, False)
