import inspect

from suite.papers.measure import METRICS

# The keys of kept results contain the settings: names and defaults must not change.
SETTINGS = """
ablation_auc: beside=None n_baselines n_images n_steps=50 stride=1
accuracy: data=None half=None n_images=None
accuracy_by_location: data=None margin n_images=None stride=1
activation_ascent: n_classes n_steps seed=0 step_size
calibration_error: n_bins=15
class_map_sparsity: n_images
closed_form_error: first=0 n_images seed=0 step=1
corrupted_accuracy: category=None level n_images=None
corruption_robustness: beside=None category level n_images=None
cross_entropy: n_images=None
density_change: n_images noise_std seed=0
density_gradient: n_images part='whole'
drawn_maps: n_images saliency
effective_receptive_field: location n_images
entropy: n_images saliency
erf_distance: n_images part='distance'
exact_share: first=0 n_images step=1
faithfulness_estimate: n_images patch=1 saliency score='probability'
feature_leakage: alone=False beside_lines=False n_images other=False relative=False saliency='integrated_gradients' shift=None
first_and_second_order: n_images
flatness: block=4 n_draws=None n_images=None of='network' part
gradient_change: n_images noise_std relative=True seed=0
grid_pointing: n_images saliency='logit_gradient'
group_objective: first=0 n_images seed=0 step=1
high_order: first=0 margins=(1.0, 10.0, 100.0) n_classes=None n_images step=1
importance_landscape: n_draws=None n_images=None of='network'
insertion_auc: fractional=False n_images n_steps saliency score='probability'
map_quality: first=0 keep_maps=False n_images n_steps=28 saliencies step=1
lambda1_sweep: image n_images
landscape_under: condition n_draws=None n_images
local_lipschitz_estimate: n_images n_samples noise_std=0.1 normalised=False saliency seed=0
logit_gradient: n_images part='label'
loss_curvature: n_images
map_centre_to_rim: n_images saliency
mask_iou: n_images
mask_iou_beyond_others: n_images
max_sensitivity: n_images n_samples radius=0.2 saliency seed=0
on_object: first=0 n_images saliencies scene
ood_auroc: data n_images=None score='log_density'
overconfidence: n_images
paths_landscape:
pixel_perturbation: centred=False n_images n_steps over='image'
removal: feature n_images statistic
robust_accuracy: attack attack_settings=None counts='unchanged' epsilon \
keep_images=True n_images scale=1.0 source=None
saliency_maps: data=None n_images saliency
second_order_distance: n_images
share_on_object: beyond_others=False n_images saliency='logit_gradient'
shifted_accuracy: n_images=None pixels
top_k_accuracy: k=5 n_images=None
training_steps: form n_steps strength
worst_group_accuracy: n_images=None
"""  # noqa: E501


def write(parameter):
    required = parameter.default is parameter.empty
    return parameter.name if required else f"{parameter.name}={parameter.default!r}"


def settings(metric):
    parameters = inspect.signature(metric).parameters.values()
    return " ".join(sorted(write(p) for p in parameters if p.name != "subject"))


def test_settings_are_unchanged():
    lines = {f"{name}: {settings(metric)}".strip() for name, metric in METRICS.items()}
    assert lines == {*SETTINGS.strip().split("\n")}
