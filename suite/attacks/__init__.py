"""Adversarial attacks on images in [0, 1]: thin calls of Foolbox and of ART.

Every attack is aimed at the class that the network predicts for the clean image. So one attack
answers both questions: is the prediction unchanged, and is it (still) correct?
"""

from collections.abc import Callable

from suite.attacks.adaptive import apgd, auto_attack, square
from suite.attacks.common import Attacked, judged
from suite.attacks.gradient import fgsm, pgd

__all__ = ["ATTACKS", "Attacked", "apgd", "auto_attack", "fgsm", "judged", "pgd", "square"]

ATTACKS: dict[str, Callable[..., Attacked]] = {
    "apgd": apgd,
    "auto_attack": auto_attack,
    "fgsm": fgsm,
    "pgd": pgd,
    "square": square,
}
