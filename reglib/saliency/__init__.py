"""CAFO and CASO: saliency maps from first- and second-order expansions of the loss."""

from reglib.saliency.high_order import Interpretation, cafo, caso
from reglib.saliency.proximal import Settings
from reglib.saliency.sparsity import Choice, choose_lambda1
from reglib.saliency.surrogate import SurrogateLoss, smooth_surrogate_loss, surrogate_loss

__all__ = [
    "Choice", "Interpretation", "Settings", "SurrogateLoss", "cafo", "caso", "choose_lambda1",
    "smooth_surrogate_loss", "surrogate_loss",
]  # fmt: skip
