"""What a backbone's first weights expect of images: the mean and standard deviation that they were trained with."""

from longtail.data.datasets.dataset import Normalisation
from longtail.models.libraries import Pretrained
from longtail.models.pretrained import read_mean_std
from longtail.models.registry import published_mean_std

__all__ = ["pretrained_normalisation"]


def pretrained_normalisation(name: str, pretrained: Pretrained, channels: int = 3) -> Normalisation | None:
    """What images are normalised by for a backbone that begins with pretrained weights.

    Args:
        name: as in :func:`build_backbone <longtail.models.build_backbone>`.
        pretrained: likewise. The file of a run's model says what that run had; any other file is taken for the weights
            that the network's library has published.
        channels: of the images; where the weights were trained on images of others, each has the mean over those.

    Returns:
        mean and standard deviation; ``None`` where weights are drawn, or nobody says.

    Example:
        >>> pretrained_normalisation("resnet50", True)
        Normalisation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        >>> pretrained_normalisation("resnet50", False) is None
        True
    """
    if pretrained is False:
        return None
    found = (None if pretrained is True else read_mean_std(pretrained)) or published_mean_std(name)
    if found is None:
        return None
    mean, std = (values if len(values) == channels else (sum(values) / len(values),) * channels for values in found)
    return Normalisation(mean, std)
