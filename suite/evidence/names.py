"""What data sets and networks are called in figures and tables."""

NAMES = {
    "mnist5k": "MNIST (5,000)",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "digits-centred": "centred digits",
    "digits-anywhere": "digits anywhere",
    "cifar10": "CIFAR-10",
    "cifar10-jpeg": "cifar10-jpeg",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "blockmnist5k": "BlockMNIST (5,000)",
    "blockmnist": "BlockMNIST",
    "texturedmnist5k": "digits on textures (5,000)",
    "texturedmnist": "digits on textures",
    "texturedfashion": "articles on textures",
    "photograph-tiles": "tiles of photographs",
    "waterbirds": "Waterbirds",
    "celeba": "CelebA",
    "imagenette320": "Imagenette-320",
    "imagenet": "ImageNet",
    "foolbox-imagenet": "Foolbox's 20 photographs",
    "imagenet-samples": "imagenet-samples",
    "imagenet-val-1000": "ImageNet validation (1,000)",
    "efficientnet_lite0": "EfficientNet-Lite0",
    "efficientnet_lite0_smooth": "smooth EfficientNet-Lite0",
    "resnet50": "ResNet-50",
    "se_resnet50": "SE-ResNet-50",
    "digit_canvas": "digit canvases",
    "digit_canvas_swapped": "digit canvases, other backgrounds",
    "coco": "COCO",
    "wood": "wood fibres",
    "oxford_pet": "Oxford-IIIT Pet",
    "cub": "CUB-200-2011",
    "cub_on_waterbirds": "CUB-200-2011 on other backgrounds",
    "imagenet_sketch": "ImageNet-Sketch",
    "imagenet_c": "ImageNet-C",
    "top_gap": "ResNet with Top-GAP",
    "lenet5": "LeNet-5",
    "resnet": "ResNet",
    "mlp": "MLP",
    "vgg11": "VGG-11",
    "wide_resnet": "WideResNet",
}


def name_of(key: object) -> str:
    """Return the name of a data set or network as figures show it.

    >>> name_of("cifar100-cropped")
    'CIFAR-100, RC+'
    """
    name = str(key).removeprefix("resized:")
    name = name if name == key else name.rpartition(":")[0]
    if name.endswith("-cropped"):
        return f"{name_of(name.removesuffix('-cropped'))}, RC+"
    return NAMES.get(name, name)
