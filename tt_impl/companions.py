"""A sequence decoded in the middle of others: for a judge that asks whether companions change it."""

from __future__ import annotations

from oracle.subjects.protocol import StepEvidence
from tt_impl.decode import Decoder

USERS = 4
JUDGED = 1
"""Neither the first user, whose rows code that forgets users would find, nor the last."""

_LATE = 3
"""Steps after which the last user begins."""


class Companions:
    """Steps user `JUDGED` of `decoder`, opened with `USERS` users, and decodes other ids beside it.

    Those ids follow from the companions' own steps alone. User 0 idles in every third step and user 2 in every second, user 3
    begins late, and user 2 begins anew now and then, so that all lengths differ.
    """

    def __init__(self, decoder: Decoder, vocabulary: int) -> None:
        self._decoder = decoder
        self._vocabulary = vocabulary
        self._step = 0

    def start(self) -> None:
        """New sequences of all users."""
        self._decoder.start()
        self._step = 0

    def step(self, token: int) -> StepEvidence:
        """As `Decoder.step`, of the judged user."""
        at, self._step = self._step, self._step + 1
        if at % 7 == 6:
            self._decoder.start(2)
        tokens: list[int | None] = [(7919 * (at + 1) + 13 * user) % self._vocabulary for user in range(USERS)]
        tokens[JUDGED] = token
        for user, idles in ((0, at % 3 == 1), (2, at % 2 == 1), (3, at < _LATE)):
            if idles:
                tokens[user] = None
        evidence = self._decoder.step_users(tokens)[JUDGED]
        assert evidence is not None  # of a user with a token
        return evidence
