"""Models that torch.compile has wrapped: a detector holds the module inside, whose names anyone can load."""

from torch import nn

WRAPPED = "_orig_mod"  # what torch.compile calls the module that it wraps


def uncompiled(model: nn.Module) -> nn.Module:
    """The model without the wrappers of torch.compile around it or around parts of it; give a copy, for it is changed.

    >>> import torch
    >>> part = torch.compile(nn.Linear(2, 3), backend="eager")
    >>> list(uncompiled(nn.Sequential(part, nn.ReLU())).state_dict()), uncompiled(part)
    (['0.weight', '0.bias'], Linear(in_features=2, out_features=3, bias=True))
    """
    for path, module in reversed(list(model.named_modules(remove_duplicate=False))):  # the innermost first
        if WRAPPED in dict(module.named_children()):
            inner: nn.Module = getattr(module, WRAPPED)
            if not path:
                return inner
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, inner)
    return model


def plain_name(name: str) -> str:
    """A parameter's or submodule's name in the model without wrappers.

    >>> plain_name("_orig_mod.body._orig_mod.0.weight")
    'body.0.weight'
    """
    return name.replace(f"{WRAPPED}.", "")
