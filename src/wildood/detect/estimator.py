"""`WildClassifier`: a classifier that says "unknown", as a scikit-learn estimator."""

from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from wildood.data.sampling import generator, seeded
from wildood.data.sources import ArraySource
from wildood.detect.detector import UNKNOWN, Detector, Example, Scores, versions
from wildood.detect.fit import check_method
from wildood.detect.fit import fit as fit_detector
from wildood.detect.posthoc import posthoc
from wildood.detect.pretrain import check_schedule, pretrain
from wildood.detect.split import check_seed
from wildood.errors import InputError
from wildood.evaluate.thresholds import check_alpha, examples_needed
from wildood.methods.objective import Method
from wildood.methods.schedule import Schedule
from wildood.models.classifier import copy_classifier, each_output, model_fingerprint
from wildood.models.small import MLP
from wildood.scores.energy import EnergyScore
from wildood.settings import check_callable, check_number, quoted
from wildood.train.progress import logger
from wildood.train.selection import Keep

_BASES: tuple[Any, ...] = ()
try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils import check_array, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:  # an extra: the class can be imported without it, but not used
    pass
else:
    _BASES = (ClassifierMixin, BaseEstimator)

Factory = Callable[[int, int], nn.Module]
_Codes = npt.NDArray[np.int64]


class WildClassifier(*_BASES):  # type: ignore[misc]
    """A scikit-learn classifier that learns from wild data to say "unknown": `fit(X, y, wild=X_wild)`.

    It trains a network on a part of X with cross-entropy, teaches it on wild data what it does not know (`wildood.fit`), and
    sets the threshold on the rest of X, which has trained nothing. If future known data is like X, the expected false-alarm
    rate is at most alpha. Without wild data, it is a plain classifier with an energy score (`wildood.posthoc`). If X is too
    small for a threshold then, it rejects nothing.

    Features are used as they are: scale them first. A Pipeline transforms X alone. With `transform_input=["wild"]`, it
    transforms wild data, too (docs/guide.md).

    Args:
        module: makes the network: a function of the number of features and the number of classes that returns a module;
            `wildood.models.small.MLP` by default.
        method: what to train with on wild data; `Woods()` by default.
        schedule: how long and how fast; the method's own by default, with a batch no larger than the data.
        pretraining: the same for the training with cross-entropy; by default up to 5,000 steps of 128 examples.
        wild: unlabelled examples, known and unknown mixed, where they cannot be given to `fit`.
        alpha: the false-alarm rate of the threshold; the method's by default, which is 5 %.
        holdout_share: the share of X that trains nothing and sets the threshold, at most 0.5; more is taken where alpha
            needs more examples. Each class has the same share, up to one example.
        keep: "best": the epoch with the lowest wild acceptance on data set aside, or the classifier as it was before if no
            epoch is shown to help; "last": the last epoch.
        unknown: what `predict` returns for a rejected example; by default -1 where y holds numbers, "unknown" where it holds
            text.
        allow_duplicates: accept rows of the holdout that are in X or wild, too, because rows repeat by nature; see
            `wildood.fit`.
        random_state: decides every random draw: a whole number, as the seed of `wildood.fit`; None for another draw in each
            call; or a `RandomState`.
        verbose: show progress.

    Attributes:
        classes_: the classes, in order; `unknown_` is none of them.
        unknown_: what `predict` returns for a rejected example.
        detector_: the detector, to save, to calibrate, and for its promise; it numbers the classes as `classes_` does.
        n_features_in_: the number of features.

    >>> import numpy as np, wildood
    >>> rng = np.random.default_rng(0)
    >>> def known(n):
    ...     y = rng.choice(["cat", "dog"], n)
    ...     return 0.3 * rng.normal(size=(n, 2)) + np.where(y == "dog", 1, -1)[:, None], y
    >>> X_wild = np.concatenate([known(250)[0], 0.3 * rng.normal(size=(50, 2)) + [2, -2]])
    >>> classifier = wildood.WildClassifier(schedule=wildood.Schedule(steps=50)).fit(*known(600), wild=X_wild)
    >>> print(*classifier.predict([[-1, -1], [1, 1], [2, -2]]))
    cat dog unknown
    """

    __metadata_request__fit: ClassVar = {"wild": True, "holdout": True, "fresh": True}  # scikit-learn passes them on

    def __init__(
        self,
        module: Factory | None = None,
        method: Method | None = None,
        schedule: Schedule | None = None,
        pretraining: Schedule | None = None,
        *,
        wild: Any = None,
        alpha: float | None = None,
        holdout_share: float = 0.2,
        keep: Keep = "best",
        unknown: Any = None,
        allow_duplicates: bool = False,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        if not _BASES:
            raise InputError("WildClassifier needs scikit-learn 1.6 or newer: pip install 'wildood[sklearn]'")
        self.module = module
        self.method = method
        self.schedule = schedule
        self.pretraining = pretraining
        self.wild = wild
        self.alpha = alpha
        self.holdout_share = holdout_share
        self.keep = keep
        self.unknown = unknown
        self.allow_duplicates = allow_duplicates
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, wild: Any = None, holdout: Any = None, fresh: Any = None) -> Self:
        """Train the classifier and set its threshold.

        Args:
            X: known examples, (examples, features).
            y: their classes, of any kind that scikit-learn takes.
            wild: unlabelled examples, known and unknown mixed, with the same features; those of the constructor by default.
            holdout: `(X, y)` that are used for the threshold in the place of a part of X.
            fresh: known examples as they come now, `X` or `(X, y)`; see `wildood.fit`.
        """
        try:
            X, y = validate_data(self, X, y, dtype=np.float32)
        except ValueError as error:
            if "could not convert string to float" not in str(error):
                raise
            spec = "spec = wildood.TableSpec.fit(X), fit(spec(X), y, wild=spec(wild))"
            raise InputError(f"X holds text ({error}): give numbers, as a TableSpec makes them: {spec}") from error
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y has one class, {quoted(self.classes_.tolist()[0])}: give examples of at least two classes")
        wild = self.wild if wild is None else wild
        traffic = None if wild is None else self._examples(wild, "wild")
        method = check_method(self.method)
        schedule = check_schedule(self.schedule, method.schedule(), has_wild_aside=True)
        alpha = check_alpha(method.alpha if self.alpha is None else self.alpha)
        trains = traffic is not None or not method.uses_wild
        if fresh is not None and not trains:
            raise InputError("fresh examples are for training on wild data: give wild=, too, or leave fresh= out")
        today, seed = None if fresh is None else self._fresh(fresh), self._seed()
        unseen = None if holdout is None else self._pair(holdout, "holdout")
        if unseen is None:
            X, codes, unseen = self._set_aside(X, codes, alpha, seed, halves=trains and self.keep != "last")
        self.unknown_ = self._unknown_label(rejects=unseen is not None)
        model = self._pretrained(X, codes, seed)
        if not trains:
            return self._keep(self._posthoc(model, (X, codes), unseen, alpha, seed))
        if traffic is not None:
            _warn_of_range(X, traffic)
        if self.schedule is None:
            schedule = replace(schedule, batch=min(schedule.batch, len(X)))
        detector = fit_detector(
            model,
            (X, codes),
            traffic,
            unseen,
            fresh=today,
            method=method,
            schedule=schedule,
            alpha=alpha,
            keep=self.keep,
            allow_duplicates=self.allow_duplicates,
            seed=seed,
            verbose=self.verbose,
        )
        return self._keep(detector)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The class of each example, or `unknown_` where it is rejected."""
        X = self._checked(X)
        scores, codes = self.detector_.score_and_classify(X)
        labels = self.classes_.astype(np.promote_types(self.classes_.dtype, np.asarray(self.unknown_).dtype))[codes]
        if not np.isnan(self.detector_.threshold):
            labels[~self.detector_.accepts(scores, codes)] = self.unknown_
        return labels

    def predict_proba(self, X: Any) -> Scores:
        """The probability of each class, in the order of `classes_`, even where an example would be rejected."""
        X = self._checked(X)
        return self.detector_.predict_proba(X)

    def decision_function(self, X: Any) -> Scores:
        """The logit of each class; of two classes, by how much that of the second exceeds that of the first.

        As for every classifier of scikit-learn, it ranks classes: scorers such as "roc_auc" read it so. `score_samples`
        ranks known before unknown.
        """
        X = self._checked(X)
        logits: Scores = each_output(self.detector_.classifier, ArraySource(X), lambda outputs: outputs.logits).numpy()
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def score_samples(self, X: Any) -> Scores:
        """How known each example looks: minus the score of the detector, so higher = more known, as in scikit-learn.

        An example is rejected where this is less than `-detector_.threshold`.
        """
        X = self._checked(X)
        return -self.detector_.score(X)

    def _checked(self, X: Any) -> npt.NDArray[np.float32]:
        check_is_fitted(self, "detector_")
        checked: npt.NDArray[np.float32] = validate_data(self, X, reset=False, dtype=np.float32)
        return checked

    def _examples(self, values: Any, name: str) -> npt.NDArray[np.float32]:
        """Other examples with the features of X."""
        examples: npt.NDArray[np.float32] = check_array(values, dtype=np.float32, input_name=name, estimator=self)
        if examples.shape[1] != self.n_features_in_:
            raise InputError(f"{name} has {examples.shape[1]} features, X has {self.n_features_in_}: give the same ones")
        validate_data(self, values, reset=False, skip_check_array=True)  # the names of features
        return examples

    def _pair(self, data: Any, name: str) -> tuple[npt.NDArray[np.float32], _Codes]:
        """Other examples, and the positions of their classes in `classes_`."""
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise InputError(f"{name} is {quoted(data)}: give (X, y)")
        labels = column_or_1d(data[1])
        strange = labels[~np.isin(labels, self.classes_)]
        if len(strange):
            raise InputError(
                f"{name} has the label {quoted(strange.tolist()[0])}, which is no class of y: give classes of y alone"
            )
        return self._examples(data[0], name), np.searchsorted(self.classes_, labels)

    def _fresh(self, fresh: Any) -> Any:
        is_pair = isinstance(fresh, tuple | list) and len(fresh) == 2 and np.ndim(fresh[0]) == 2
        return self._pair(fresh, "fresh") if is_pair else self._examples(fresh, "fresh")

    def _keep(self, detector: Detector) -> Self:
        """Keep a detector, with the names of its classes."""
        detector.record["classes"] = [str(each) for each in self.classes_]
        self.detector_ = detector
        return self

    def _seed(self) -> int:
        if isinstance(self.random_state, Integral):
            return check_seed(self.random_state, "random_state")
        return int(check_random_state(self.random_state).randint(1 << 31))

    def _set_aside(
        self,
        X: npt.NDArray[np.float32],
        codes: _Codes,
        alpha: float,
        seed: int,
        *,
        halves: bool,
    ) -> tuple[npt.NDArray[np.float32], _Codes, tuple[npt.NDArray[np.float32], _Codes] | None]:
        """X without the holdout, and the holdout; None where X is too small for it and nothing else is trained."""
        expected = "a share of X, above 0 and at most 0.5"
        share = check_number(self.holdout_share, "holdout_share", expected, above=0, most=0.5)
        needed = examples_needed(alpha) * (2 if halves else 1)  # one half chooses, the other sets the threshold
        count = max(round(share * len(X)), needed)
        if 2 * count <= len(X):
            aside = stratified_sample(codes, count, seed)
            return X[~aside], codes[~aside], (X[aside], codes[aside])
        if halves:
            raise InputError(
                f"X has {len(X)} examples: too few to set {count} aside for a false-alarm rate of {alpha} and train on the "
                "others; give more, a larger alpha, or holdout=(X, y)"
            )
        return X, codes, None

    def _unknown_label(self, *, rejects: bool) -> Any:
        is_text = isinstance(self.classes_[0], str)
        label = ("unknown" if is_text else UNKNOWN) if self.unknown is None else self.unknown
        if not isinstance(label, str if is_text else Real):
            raise InputError(
                f"unknown is {quoted(label)}: give {'text' if is_text else 'a number'}, as the classes of y are"
            )
        if rejects and label in self.classes_:
            raise InputError(f"y has the class {quoted(label)}, as rejected examples would: give another unknown=")
        return label

    def _pretrained(self, X: npt.NDArray[np.float32], codes: _Codes, seed: int) -> nn.Module:
        """The network, trained with cross-entropy."""
        features, classes = X.shape[1], len(self.classes_)
        if isinstance(self.module, nn.Module):
            raise InputError(
                "module is a network: give a function that makes one, as in module=lambda features, classes: ..."
            )
        factory = MLP if self.module is None else check_callable(self.module, "module", features, classes)
        with seeded(seed, "module"):
            model = factory(features, classes)
        outputs = copy_classifier(model, ArraySource(X), None, None, uses_features=False)[1]
        if outputs != classes:
            raise InputError(
                f"the module has {outputs} outputs for {classes} classes: let module(features, classes) use both"
            )
        schedule = default_pretraining(len(X)) if self.pretraining is None else self.pretraining
        return pretrain(model, (X, codes), schedule=schedule, seed=seed, verbose=self.verbose)

    def _posthoc(self, model: nn.Module, labelled: Any, holdout: Any, alpha: float, seed: int) -> Detector:
        """The network with an energy score, and a threshold if there are examples to set it on."""
        plain = "no wild data: this is a plain classifier with an energy score"
        if holdout is not None:
            logger.warning("%s; give wild= to train on what it meets", plain)
            data: dict[str, Any] = {"labelled": labelled, "holdout": holdout, "allow_duplicates": self.allow_duplicates}
            return posthoc(model, EnergyScore(), **data, alpha=alpha, seed=seed)
        few, rate = len(labelled[0]), f"{100 * alpha:g} %"
        logger.warning(
            "%s, and X has %d examples, too few for a false-alarm rate of %s: it rejects nothing", plain, few, rate
        )
        source = ArraySource(*labelled)
        classifier, _ = copy_classifier(model, source, None, None, uses_features=False)
        record = {"score": "EnergyScore", "model": model_fingerprint(classifier.model), "versions": versions()}
        return Detector(classifier.eval(), EnergyScore(), Example.of(source), record=record)


def stratified_sample(codes: _Codes, count: int, seed: int) -> npt.NDArray[np.bool_]:
    """Which examples to set aside: a systematic sample, in which each class has its share, rounded up or down at random.

    Every example has the same chance to be in it, so that the threshold holds for data like all examples. If no more than
    half is set aside, some of each class is left, but for the single example of a class.

    >>> aside = stratified_sample(np.array([0] * 60 + [1] * 38 + [2, 2]), count=25, seed=0)
    >>> int(aside.sum()), int(aside[:60].sum()), int(aside[98:].sum()) <= 1
    (25, 15, True)
    """
    rng = generator(seed, "holdout-of-X")
    order = torch.randperm(len(codes), generator=rng).numpy()
    order = order[np.argsort(codes[order], kind="stable")]
    start = torch.rand((), generator=rng, dtype=torch.float64).item()
    places = np.floor((np.arange(count) + start) * (len(order) / count)).astype(int)
    aside = np.zeros(len(codes), bool)
    aside[order[places]] = True
    return aside


def default_pretraining(examples: int) -> Schedule:
    """A hundred passes over the examples in batches of 128, but at least 500 steps and at most 5,000.

    >>> default_pretraining(1000).steps, default_pretraining(100).steps, default_pretraining(10**6).steps
    (781, 500, 5000)
    """
    batch = max(2, min(128, examples))
    steps = min(max(100 * examples // batch, 500), 5000)
    return Schedule(steps=steps, batch=batch, lr=0.1, decay="cosine", averaging=False)


def _warn_of_range(X: npt.NDArray[np.float32], wild: npt.NDArray[np.float32]) -> None:
    """Warn that most wild examples are outside the range of a feature: known ones among them would be inside."""
    outside = ((wild < X.min(0)) | (wild > X.max(0))).mean(0)
    worst = int(outside.argmax())
    if outside[worst] > 0.5:
        logger.warning(
            "%.0f %% of wild is outside the range of X in feature %d: was it scaled as X was? A Pipeline transforms X alone",
            100 * outside[worst],
            worst,
        )
