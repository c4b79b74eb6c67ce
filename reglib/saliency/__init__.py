"""CAFO and CASO: saliency maps of a loss to second order: see `reglib.saliency.high_order`."""

from reglib.saliency.high_order import Interpretation, cafo, caso
from reglib.saliency.proximal import Settings
from reglib.saliency.sparsity import Choice, choose_lambda1
from reglib.saliency.surrogate import SurrogateLoss, smooth_surrogate_loss, surrogate_loss

__all__ = [
    "Choice", "Interpretation", "Settings", "SurrogateLoss", "cafo", "caso", "choose_lambda1",
    "smooth_surrogate_loss", "surrogate_loss",
]  # fmt: skip
