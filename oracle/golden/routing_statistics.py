"""The statistics of routing that limits are set on: one rule, for floors and for gate `routing`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oracle.golden.calibration import UNSEEN
from oracle.golden.compare import Comparison
from oracle.golden.portable import quantiles


def share_of_sets(comparison: Comparison) -> float:
    """Share of positions and layers whose expert set differs, `UNSEEN` added to their number."""
    return (int(comparison.set_differs.sum()) + UNSEEN) / comparison.set_differs.size


def weight_quantiles(
    weight_error: npt.NDArray[np.float64], *, upper: bool = False
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Median and p90 per layer, each [L], over the positions where weights were compared; 0 where there are none."""
    columns = [column[column >= 0] for column in weight_error.T]
    pairs = [quantiles(column, [0.5, 0.9], upper=upper) if column.size else np.zeros(2) for column in columns]
    return np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])


def router_logit_extent(router_logit_error: npt.NDArray[np.float64], *, upper: bool = False) -> tuple[float, float]:
    """Median and maximum over the probes and layers where router logits were compared; 0 where there are none."""
    compared = router_logit_error[router_logit_error >= 0]
    return (float(quantiles(compared, [0.5], upper=upper)[0]), float(compared.max())) if compared.size else (0.0, 0.0)
