"""CAFO and CASO: saliency maps of a loss to second order: see `reglib.saliency.high_order`."""

from reglib.saliency.high_order import Interpretation, cafo, caso
from reglib.saliency.proximal import Settings
from reglib.saliency.sparsity import Choice, choose_lambda1
from reglib.saliency.surrogate import SurrogateLoss, smooth_surrogate_loss, surrogate_loss

__all__ = (
    "surrogate_loss smooth_surrogate_loss SurrogateLoss cafo caso Interpretation Settings "
    "choose_lambda1 Choice"
).split()
