"""How the curves of a figure are told apart: a colour, a shape and a kind of line for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Final, get_args

import altair as alt

from rankscope.errors import InputError
from rankscope.results import Role
from rankscope.show.figures import _theme as theme

Roles = Mapping[str, Role]

_BLUE, _ORANGE, _GREEN, _RED, *_OTHERS = theme.PALETTE
# The colours of curves that are not measured, by their role and in the order they are given out;
# what is measured comes first, and starts with blue.
_BESIDE: Final[Mapping[Role, Sequence[str]]] = {
    "bound": (_GREEN, _RED, _ORANGE, *_OTHERS),
    "floor": (_ORANGE, _RED, _GREEN, *_OTHERS),
}

# The two selections of a figure: the curve under the pointer, and those clicked on in the legend.
HOVERED: Final = "hovered"
PINNED: Final = "pinned"
_IN_FOCUS: Final = {
    "or": [
        {"param": HOVERED, "empty": False},
        {"and": [{"param": HOVERED}, {"param": PINNED}]},
    ]
}


@dataclass(frozen=True)
class Look:
    """The looks of curves by name, all alike if they have no names; data hold it as ``variant``."""

    colours: Mapping[str, str]
    dashes: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, names: Sequence[str], roles: Roles | None = None, *, kinds: int = 4) -> "Look":
        """The look of curves of any names, in ``kinds`` of lines."""
        for name, role in (roles or {}).items():
            if role not in get_args(Role):
                raise InputError(
                    f"the curve {name!r} has the role {role!r}; choose {', '.join(get_args(Role))}."
                )
        return cls(colours(names, roles), dashes(names, roles, kinds=kinds))

    @property
    def names(self) -> list[str]:
        """The names of the curves."""
        return list(self.colours)

    def colour(self) -> Any:
        """A fixed colour for each curve."""
        return _fixed(alt.Color, self.colours, theme.SINGLE_COLOUR)

    def shape(self) -> Any:
        """A fixed shape for each curve."""
        return _fixed(alt.Shape, theme.shapes(self.names), theme.SHAPES[0])

    def dash(self) -> Any:
        """A fixed kind of line for each curve."""
        return _fixed(alt.StrokeDash, self.dashes, theme.DASHES[0])

    def opacity(self, full: float) -> Any:
        """Full for the curves in focus, faint for the others."""
        if not self.colours:
            return alt.value(full)
        return alt.OpacityValue(full * theme.FADED, condition={"test": _IN_FOCUS, "value": full})


def _fixed(channel: Any, looks: Mapping[str, Any], single: Any) -> Any:
    if not looks:
        return alt.value(single)
    scale = alt.Scale(domain=list(looks), range=list(looks.values()))
    return channel("variant:N", scale=scale)


def colours(names: Sequence[str], roles: Roles | None = None) -> dict[str, str]:
    """One colour per curve: that of its variant if it has one, otherwise by its role.

    >>> colours(["measured", "a bound"], {"a bound": "bound"})["measured"]
    '#3566c8'
    """
    beside = _not_measured(names, roles)
    measured = [name for name in names if name not in beside]
    known = any(name in theme.VARIANT_COLOURS for name in measured)
    following = cycle(theme.FOLLOWING_COLOURS if known else theme.PALETTE)
    chosen = {name: theme.VARIANT_COLOURS.get(name) or next(following) for name in measured}
    for name, role in beside.items():
        order = _BESIDE[role]
        free = [colour for colour in order if colour not in chosen.values()]
        chosen[name] = free[0] if free else order[len(chosen) % len(order)]
    return {name: chosen[name] for name in names}


def dashes(
    names: Sequence[str], roles: Roles | None = None, *, kinds: int = 4
) -> dict[str, list[int]]:
    """What is measured solid beside bounds and floors; by itself in turn, so that none hides."""
    beside = _not_measured(names, roles)
    solid, *broken = theme.DASHES
    if not beside:
        return dict(zip(names, cycle(theme.DASHES[:kinds]), strict=False))
    return dict.fromkeys(names, solid) | dict(zip(beside, cycle(broken), strict=False))


def _not_measured(names: Sequence[str], roles: Roles | None) -> dict[str, Role]:
    """The curves that stand beside what was measured, with their roles."""
    return {
        name: roles[name] for name in names if roles and roles.get(name, "measured") != "measured"
    }
