"""A text with places that values are put into, such as a prompt around sources."""

from __future__ import annotations


class PlacedText:
    """A text with named places, each once and in a given order. What is put in is not looked at for places.

    Args:
        template: has each place as ``{{ name }}``.
        names: the places' names, in their order.

    Raises:
        ValueError: a place is missing, there more than once, or in another order.
    """

    def __init__(self, template: str, *names: str) -> None:
        places = [f"{{{{ {name} }}}}" for name in names]
        self._parts: list[str] = []
        rest = template
        for place in places:
            before, found, rest = rest.partition(place)
            if not found or any(other in before for other in places):
                raise ValueError(f"it needs {', and after it '.join(places)}, once each")
            self._parts.append(before)
        if any(place in rest for place in places):
            raise ValueError(f"it needs {', and after it '.join(places)}, once each")
        self._parts.append(rest)

    def fill(self, *values: str) -> str:
        """Returns the text with these values in its places, in their order."""
        first, *others = self._parts
        return first + "".join(value + part for value, part in zip(values, others, strict=True))
