"""What tables call methods, sets and metrics, in the paper's order, and which set of the paper a file stands in for."""

from pathlib import PurePosixPath

METHOD_TITLES = {
    "max-softmax": "MSP",
    "max-logit": "max-logit",
    "odin": "ODIN",
    "energy": "energy",
    "mahalanobis": "Mahalanobis",
    "knn": "KNN",
    "react": "ReAct",
    "vim": "ViM",
    "godin": "GODIN",
    "csi": "CSI",
    "oe": "OE",
    "energy-margin": "energy, margins",
    "energy-logistic": "energy, logistic",
    "woods": "WOODS",
    "woods-alt": "WOODS-alt",
}
SET_TITLES = {
    "svhn": "SVHN",
    "lsun-r": "LSUN-R",
    "lsun-c": "LSUN-C",
    "textures": "Textures",
    "places365": "Places365",
    "300k": "300K Rand. Img.",
    "isun": "iSUN",
    "digits": "digits 7-9",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
}
STAND_INS = {
    "cifar10.npz": "cifar10",
    "svhn.npz": "svhn",
    "textures.npz": "textures",
    "places.npz": "places365",
    "rooms_resize.npz": "lsun-r",
    "rooms_crop.npz": "lsun-c",
    "random_images.npz": "300k",
}
METRIC_TITLES = {"fpr95": "FPR95 ↓", "accepted": "accepted ↓", "auroc": "AUROC ↑", "accuracy": "accuracy ↑"}
AVERAGE = "average"  # over the OOD sets of a table: it stands where a set does
_METHODS, _SETS = list(METHOD_TITLES), list(SET_TITLES)


def paper_set(name: str) -> str:
    """The set of the paper that this one is, or stands in for; itself if it is none of them.

    >>> paper_set("rooms_resize.npz"), paper_set("svhn"), paper_set("mine.npz")
    ('lsun-r', 'svhn', 'mine.npz')
    """
    return STAND_INS.get(name, name)


def set_title(name: str) -> str:
    """An OOD set for people: a file is its stem.

    >>> set_title("svhn"), set_title("pictures/rooms_resize.npz")
    ('SVHN', 'rooms_resize')
    """
    return SET_TITLES.get(name) or PurePosixPath(name).stem


def column_title(name: str) -> str:
    """What stands above a column, or in a line, of an OOD set or of AVERAGE; nothing for accuracy, which has no set.

    >>> column_title("svhn"), column_title(AVERAGE), column_title("")
    ('SVHN', 'average', '')
    """
    return name if name == AVERAGE else set_title(name)


def id_title(name: str) -> str:
    """An ID set for people: of the digits, it is those that are not OOD.

    >>> id_title("digits"), id_title("cifar10.npz")
    ('digits 0-6', 'cifar10')
    """
    return "digits 0-6" if name == "digits" else set_title(name)


def set_order(name: str) -> tuple[int, str]:
    """To sort OOD sets by: the paper's columns, by what a file stands in for, then others by name.

    >>> sorted(["mine.npz", "places.npz", "lsun-c", "svhn"], key=set_order)
    ['svhn', 'lsun-c', 'places.npz', 'mine.npz']
    """
    known = paper_set(name)
    return (_SETS.index(known) if known in _SETS else len(_SETS)), name


def method_title(name: str) -> str:
    """A method for people; one of a user's own has no other name.

    >>> method_title("max-softmax"), method_title("mine:Method")
    ('MSP', 'mine:Method')
    """
    return METHOD_TITLES.get(name, name)


def method_order(name: str) -> tuple[int, str]:
    """To sort methods by: the paper's rows, then others by name.

    >>> sorted(["mine:B", "woods", "mine:A", "oe", "max-softmax"], key=method_order)
    ['max-softmax', 'oe', 'woods', 'mine:A', 'mine:B']
    """
    return (_METHODS.index(name) if name in _METHODS else len(_METHODS)), name
