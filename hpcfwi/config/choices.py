"""A method that an input names, and the keys that it has of its own.

Which methods there are is in `registry`. A method is a function or a class, and its keys are its
keyword-only parameters: their annotations say what values there may be and what they mean. So a
method with its keys is one file, whatever it needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, create_model, model_validator
from pydantic.fields import FieldInfo

from hpcfwi.config.values import Section
from hpcfwi.registry import find


class Choice(Section):
    """One of a registry: its name alone, or a table with the name and the keys of its own.

    naming: the key of the name, which is a field of whatever choice this is.
    """

    model_config = ConfigDict(extra="allow")

    registry: ClassVar[Mapping[str, str]]
    naming: ClassVar[str] = "name"

    @model_validator(mode="before")
    @classmethod
    def _with_name(cls, value: object) -> object:
        return {cls.naming: value} if isinstance(value, str) else value

    @property
    def chosen(self) -> str:
        """The name."""
        return cast(str, getattr(self, self.naming))

    @property
    def place(self) -> str:
        """Where the method is."""
        return self.registry[self.chosen]

    @property
    def method_keys(self) -> type[Section]:
        """The table of the keys that this method has."""
        return keys_of(self.place)

    @classmethod
    def own_keys(cls) -> dict[str, FieldInfo]:
        """The keys that all of the registry's methods have, beside the name."""
        return {key: field for key, field in cls.model_fields.items() if key != cls.naming}

    @property
    def table(self) -> type[Section]:
        """The table of all keys that may stand beside this name."""
        own = {key: (field.annotation, field) for key, field in self.own_keys().items()}
        keys = self.method_keys
        return create_model(keys.__name__, __base__=keys, **cast(Any, own))

    def check(self) -> Section:
        """The values of its keys, with defaults; raises `ValidationError` for others."""
        return self.method_keys.model_validate(self.model_extra)

    def takes(self, name: str) -> bool:
        """Whether the method can be given this beside its keys."""
        return name in inspect.signature(find(self.place)).parameters

    def make(self) -> Callable[..., Any]:
        """The method, to be called with what it works on."""
        values = self.check()
        keys = {key: getattr(values, key) for key in type(values).model_fields}
        return partial(find(self.place), **keys)


@cache
def keys_of(place: str) -> type[Section]:
    """The table of the keys of what is at a place of a registry."""
    method = find(place)
    parameters = inspect.signature(method).parameters.values()
    fields: dict[str, Any] = {
        key.name: (
            Any if key.annotation is key.empty else key.annotation,
            ... if key.default is key.empty else key.default,
        )
        for key in parameters
        if key.kind is key.KEYWORD_ONLY
    }
    return create_model(
        method.__name__,
        __base__=Section,
        __module__=method.__module__,
        __doc__=inspect.getdoc(method),
        **fields,
    )


def find_choices(
    section: BaseModel, parents: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Choice]]:
    """The choices in a section and in those within it, each with its keys from the top."""
    for key in type(section).model_fields:
        value, path = getattr(section, key), (*parents, key)
        if isinstance(value, Choice):
            yield path, value
        elif isinstance(value, BaseModel):
            yield from find_choices(value, path)
