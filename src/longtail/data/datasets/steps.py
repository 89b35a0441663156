"""How to get a data set: the command where there is one, and what to do by hand where a licence leaves no other way."""

__all__ = [
    "DIGITS",
    "IMAGENET",
    "IMAGENET_LT",
    "INATURALIST2018",
    "LVIS_CROPS",
    "PLACES_LT",
    "TINY_IMAGENET",
    "get",
]


def get(name: str) -> str:
    """Of a data set that a command fetches."""
    return f"`longtail data get {name}` fetches it."


def _lists(of: str, names: str, into: str) -> str:
    folder = f"https://github.com/facebookresearch/classifier-balancing/tree/main/data/{of}"
    return f"download the lists {names} from {folder} into {into} in the data folder"


_LICENCE = "its licence has you fetch the images yourself"

DIGITS = "pip install 'longtail[data]'."
IMAGENET = (
    f"{_LICENCE}: register at https://image-net.org, download ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and "
    "ILSVRC2012_devkit_t12.tar.gz into imagenet in the data folder, and have torchvision unpack and sort them into "
    'imagenet/train/n…/*.JPEG and imagenet/val/n…/*.JPEG: `python -c "from torchvision.datasets import ImageNet; '
    "[ImageNet('data/imagenet', part) for part in ('train', 'val')]\"`."
)
IMAGENET_LT = (
    f"{_lists('ImageNet_LT', 'ImageNet_LT_train.txt, ImageNet_LT_val.txt and ImageNet_LT_test.txt', 'imagenet-lt')}; "
    f"of ImageNet itself, {IMAGENET}"
)
PLACES_LT = (
    f"{_lists('Places_LT', 'Places_LT_train.txt, Places_LT_val.txt and Places_LT_test.txt', 'places-lt')}; {_LICENCE}: "
    "download places365standard_easyformat.tar (256 x 256) from http://places2.csail.mit.edu and unpack it so that "
    "there are places365/train/airfield/*.jpg and places365/val/airfield/*.jpg, and so on, in the data folder."
)
INATURALIST2018 = (
    f"{_lists('iNaturalist18', 'iNaturalist18_train.txt and iNaturalist18_val.txt', 'inaturalist2018')}; {_LICENCE}: "
    "download train_val2018.tar.gz, which https://github.com/visipedia/inat_comp/tree/master/2018 links to, and unpack "
    "it in inaturalist2018, so that there are inaturalist2018/train_val2018/Aves/2761/*.jpg and so on."
)
LVIS_CROPS = (
    "download lvis_v1_train.json and lvis_v1_val.json (https://www.lvisdataset.org) into lvis, and COCO's "
    "train2017 and val2017 images (https://cocodataset.org) into coco, then run `longtail data build-lvis-crops`, "
    "which writes 228 GB."
)
TINY_IMAGENET = "download http://cs231n.stanford.edu/tiny-imagenet-200.zip and unpack it in the data folder."
