"""A frozen backbone: the features of all data are computed once, and only what comes after them is trained."""

import copy

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wildood.data.judged import Judged
from wildood.data.sources import ArraySource, Source
from wildood.data.structures import Raw
from wildood.data.validation import all_labels, has_labels
from wildood.data.wild import Wild, WildMixture, WildPool
from wildood.detect.split import FitSplit, subsample
from wildood.errors import InputError
from wildood.methods.objective import Method, stages_of
from wildood.methods.schedule import Schedule
from wildood.models.classifier import Classifier, Precision, evaluating, last_layer, raw_batches
from wildood.models.features import FeatureTap
from wildood.train.progress import progress_bar

Features = npt.NDArray[np.float32]
MOST_WILD = 100_000  # wild examples whose features are computed, at most: seldom does a training read more
LAYER = "0"  # the name of the last layer where it is the whole model


def check_frozen(method: Method, schedule: Schedule, precision: Precision) -> None:
    """Refuse what a frozen backbone cannot serve: features are computed once, of images as they are."""
    if len(stages_of(method)) > 1:
        raise InputError(f"{type(method).__name__} trains the backbone: leave frozen (--frozen) out")
    if schedule.augment:
        raise InputError("frozen computes the features once, of images as they are: give a schedule without augment")
    if precision != "float32":
        raise InputError("frozen computes the features once, in float32: leave precision (--precision) out")


def head_of(classifier: Classifier, some: Raw) -> Classifier:
    """The classifier's last layer, as a classifier of features; tried on some raw examples."""
    last_layer(classifier, some)  # refuses a model whose last Linear does not make the logits
    layer = _last(classifier)
    own = {id(parameter) for parameter in layer.parameters()}
    uses = [id(parameter) for _, parameter in classifier.model.named_parameters(remove_duplicate=False)]
    if sum(map(own.__contains__, uses)) > len(own):
        raise InputError("the last layer shares its weights with another one, which frozen would change: leave it out")
    alone = copy.deepcopy(layer).float().requires_grad_()
    return Classifier(nn.Sequential(alone), tap=FeatureTap(LAYER, side="input"))


def freeze(classifier: Classifier, data: FitSplit, schedule: Schedule, seed: int) -> tuple[Classifier, FitSplit]:
    """The last layer, and as features in memory what a fit trains on (of wild data what steps can read) and chooses by."""
    head = head_of(classifier, data.labelled.gather(torch.arange(2))[0])
    pools = () if data.wild is None else data.wild.pools
    _, steps = schedule.length(len(data.labelled), [len(pool) for pool in pools])
    least = len(data.labelled) if schedule.epoch == "shortest" else 0  # fewer would make an epoch shorter
    most = max(min(steps * schedule.batch, MOST_WILD), least)

    def labelled(source: Source) -> ArraySource:
        return ArraySource(features_of(classifier, source), all_labels(source))

    def unlabelled(source: Source) -> ArraySource:
        return ArraySource(features_of(classifier, source))

    computed = data._replace(
        labelled=labelled(data.labelled),
        wild=_wild([unlabelled(subsample(pool, most, seed)) for pool in pools], data.wild),
        wild_aside=None if data.wild_aside is None else unlabelled(data.wild_aside),
        selection=labelled(data.selection),
        fresh=None if data.fresh is None else (labelled if has_labels(data.fresh) else unlabelled)(data.fresh),
        judged=None if data.judged is None else Judged(unlabelled(data.judged.examples), data.judged.is_ood),
    )
    return head, computed


def put_back(head: Classifier, classifier: Classifier, *, tapped: bool) -> None:
    """Give the whole classifier the last layer that was trained, or the head that took its place; tap it no more."""
    _last(classifier).load_state_dict(_last(head).state_dict())
    classifier.head = head.head
    if not tapped:
        classifier.untap()


def features_of(classifier: Classifier, source: Source) -> Features:
    """The features of every example, batch by batch into one array, so that none is in memory twice."""
    features, done = np.empty((0, 0), np.float32), 0
    with evaluating(classifier), progress_bar(len(source), 0, "features", "examples") as bar:
        for raw, _ in raw_batches(source):
            batch = classifier.features(classifier.prepare(raw)).cpu().numpy()
            if done == 0:
                features = np.empty((len(source), batch.shape[1]), np.float32)
            features[done : done + len(batch)] = batch
            done += len(batch)
            bar.at(done)
    return features


def _last(classifier: Classifier) -> nn.Module:
    assert classifier.tap is not None  # noqa: S101 - its features were computed
    return classifier.model.get_submodule(classifier.tap.layer)


def _wild(pools: list[ArraySource], like: Wild | None) -> Wild | None:
    if isinstance(like, WildMixture):
        known, unknown = pools
        return WildMixture(id=known.examples, ood=unknown.examples, pi=like.pi)
    return WildPool(pools[0]) if pools else None
