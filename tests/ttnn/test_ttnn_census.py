"""What the judge's auditors of ops and of computing copies say of the decoder on ttnn, as the gates will look at it on a card.

Values are the host's own, read back by `Mirroring`; names, counts and order are ttnn's device's record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from goldens import mini_checkpoint
from oracle.judge.census import undeclared
from oracle.judge.census_audit import CensusAuditor
from oracle.judge.census_watch import recorded
from oracle.judge.dequantize import DequantizedWeights
from oracle.judge.observers import Observers
from oracle.judge.operand_audit import OperandAuditor
from oracle.judge.resident_audit import audit_residents
from oracle.judge.slot_audit import SlotAuditor
from oracle.kolibri1.checkpoint import Checkpoint
from oracle.kolibri1.config import Kolibri1Config
from oracle.kolibri1.release import RELEASE_CONFIG
from oracle.subjects.protocol import SubjectRequest
from tt_impl.device.sim import P150, SimDevice
from tt_impl.device.ttnn.device import TtnnDevice
from tt_impl.device.ttnn.mirroring import Mirroring
from tt_impl.device.ttnn.rehearsal import layers_of_each_kind, rehearsing_decoder
from tt_impl.device.ttnn.step import Recorder
from tt_impl.subject import FACTORY

CHECKPOINT = Checkpoint.open(mini_checkpoint())
RELEASE = layers_of_each_kind(Kolibri1Config.model_validate(RELEASE_CONFIG))


class Audited:
    """Two steps of the subject on ttnn, under all auditors that a session has."""

    def __init__(self, device: TtnnDevice, monkeypatch: pytest.MonkeyPatch, plant: str | None = None) -> None:
        monkeypatch.setattr(TtnnDevice, "open", lambda **_: Mirroring(device))
        self.census = CensusAuditor(CHECKPOINT.config, "p")
        self.operands = OperandAuditor(DequantizedWeights(CHECKPOINT))
        self.slots = SlotAuditor(CHECKPOINT)
        request = SubjectRequest(mini_checkpoint(), device="ttnn", plant=plant)
        self.subject = FACTORY.open(request, Observers(self.slots, self.operands))
        watched = recorded(self.subject, self.census)
        watched.reset()
        watched.start()
        for token in (3, 5):
            watched.step(token)
        self.operands.read_back(self.subject.operands())

    def red(self) -> set[str]:
        residents = audit_residents(CHECKPOINT, self.subject.residents())
        audited = {"operands": self.operands.evidence(), "census": self.census.evidence(), "slots": self.slots.evidence()}
        fired = {name for name, evidence in (audited | {"staging": residents}).items() if evidence.violations}
        return fired | ({"census"} if undeclared(self.census.evidence()) else set())


def test_every_auditor_is_content_with_the_decoder_on_ttnn(device: TtnnDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    audited = Audited(device, monkeypatch)
    assert audited.red() == set()
    census = audited.census.evidence()
    assert (census.steps, census.weights > 300) == (2, True)
    operands = audited.operands.evidence()
    assert operands is not None
    assert all((operands.uploaded, operands.held, operands.experts))
    assert audited.slots.evidence().fills > 0


@pytest.mark.parametrize("plant", ["norms-crossed", "expert-repeated", "add-doubled", "full-layer-turned", "down-offset"])
def test_a_planted_fault_is_red_on_ttnn_at_its_gate(device: TtnnDevice, monkeypatch: pytest.MonkeyPatch, plant: str) -> None:
    assert f"gate:{next(iter(Audited(device, monkeypatch, plant).red()))}" == FACTORY.plants[plant]


@pytest.mark.parametrize("config", [layers_of_each_kind(CHECKPOINT.config), RELEASE], ids=["mini", "release"])
def test_a_step_is_what_the_model_demands_and_the_simulated_card_is_sent_the_same(
    device: TtnnDevice, config: Kolibri1Config
) -> None:
    """By the judge's census; and in shapes, dtypes and layouts of operands and results.

    Over zeros, with one layer of each kind, and of the release's vocabulary 1,024 ids: the simulated card holds real bytes.
    """
    config = config.model_copy(update={"vocab_size": min(config.vocab_size, 1024)})
    mirroring, calls = Mirroring(device), []
    for opened in (mirroring, SimDevice(dram=P150)):
        recorder: Any = Recorder(opened)
        decoder, auditor = rehearsing_decoder(recorder, config), CensusAuditor(config, "p")
        auditor.declare(decoder.declared_ops())
        decoder.record_ops(True)
        evidence = decoder.step(3)
        auditor.step(evidence.position, decoder.recorded_ops(), np.asarray(evidence.expert_ids).tolist())
        seen = auditor.evidence()
        assert (seen.steps, seen.violations, undeclared(seen)) == (1, (), [])
        calls.append(recorder.calls)
    assert calls[0] == calls[1]
    assert len(calls[0]) > 80
    mirroring.free_all()
