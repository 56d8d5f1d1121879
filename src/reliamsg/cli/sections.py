"""A group of commands whose help lists them in sections."""

from __future__ import annotations

from collections.abc import Sequence

import click

__all__ = ["SectionedGroup"]


class SectionedGroup(click.Group):
    """A group that lists the commands added with :meth:`add_section` under their sections' titles, in that order.

    Commands added in any other way are listed last, under the usual title.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # passed on by click
        self._sections: list[tuple[str, tuple[str, ...]]] = []

    def add_section(self, title: str, commands: Sequence[click.Command]) -> None:
        """Add `commands` to the group, listed under `title`."""
        for command in commands:
            self.add_command(command)
        self._sections.append((title, tuple(command.name or "" for command in commands)))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list of commands per section."""
        listed = {name for _, names in self._sections for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in listed)
        # One width for all sections, so that their descriptions line up.
        width = max(map(len, self.commands), default=0)
        limit = formatter.width - 6 - width
        for title, names in (*self._sections, ("Commands", others)):
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (name.ljust(width), command.get_short_help_str(limit))
                for name, command in commands
                if command is not None and not command.hidden
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
