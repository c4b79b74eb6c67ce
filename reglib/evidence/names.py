"""What data sets and networks are called in figures and tables."""

NAMES = {
    "mnist5k": "MNIST (5,000)",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "cifar10": "CIFAR-10",
    "cifar10-jpeg": "cifar10-jpeg",
    "imagenette320": "Imagenette-320",
    "digit_canvas": "digit canvases",
    "digit_canvas_swapped": "digit canvases, other backgrounds",
    "imagenet": "ImageNet",
    "coco": "COCO",
    "wood": "wood fibres",
    "oxford_pet": "Oxford-IIIT Pet",
    "cub": "CUB-200-2011",
    "waterbirds": "Waterbirds",
    "imagenet_sketch": "ImageNet-Sketch",
    "imagenet_c": "ImageNet-C",
    "top_gap": "ResNet with Top-GAP",
    "lenet5": "LeNet-5",
    "resnet": "ResNet",
}


def name_of(key: object) -> str:
    """Return the name of a data set or network as figures show it."""
    return NAMES.get(str(key), str(key))
