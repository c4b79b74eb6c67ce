"""Saliency maps: which pixels of an image matter to a network.

A method is a function of (model, images, class_index) that returns maps of the images' shape. CAFO
and CASO are functions of a loss to second order: see `reglib.saliency.high_order`.
"""

from reglib.saliency.by_name import SALIENCIES, patient_caso
from reglib.saliency.class_activation import grad_cam
from reglib.saliency.display import normalised_for_display
from reglib.saliency.gradients import (
    Saliency,
    deeplift,
    integrated_gradients,
    logit_gradient,
    loss_gradient,
    smooth_grad,
)
from reglib.saliency.high_order import Interpretation, cafo, caso
from reglib.saliency.proximal import Settings
from reglib.saliency.sparsity import Choice, choose_lambda1
from reglib.saliency.surrogate import SurrogateLoss, smooth_surrogate_loss, surrogate_loss

__all__ = [
    "SALIENCIES",
    "Choice",
    "Interpretation",
    "Saliency",
    "Settings",
    "SurrogateLoss",
    "cafo",
    "caso",
    "choose_lambda1",
    "deeplift",
    "grad_cam",
    "integrated_gradients",
    "logit_gradient",
    "loss_gradient",
    "normalised_for_display",
    "patient_caso",
    "smooth_grad",
    "smooth_surrogate_loss",
    "surrogate_loss",
]
