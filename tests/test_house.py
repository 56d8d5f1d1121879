"""The rules of the sources' structure, as ``tests/house.py`` defines them. There are no exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import RULES, read_house


@pytest.mark.parametrize("rule", RULES)
def test_the_sources_keep_the_rule(rule: str) -> None:
    """All packages in one test: most of the time goes into parsing the sources."""
    found = list(RULES[rule](read_house()))
    assert not found, "\n".join(map(str, found))


def test_all_packages_and_rules_are_tested() -> None:
    assert RULES.keys() == {"circles", "parents", "callbacks", "assignments", "private-names", "parameters"}
    assert len(read_house().packages) > 10


def found_in(tmp_path: Path, rule: str, **files: str) -> list[str]:
    """The violations in a project of some files; ``a__b`` stands for ``a/b.py``, ``init`` for ``__init__.py``."""
    for name, text in files.items():
        file = tmp_path / f"{name.replace('__', '/').replace('init', '__init__')}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return sorted(str(each) for each in RULES[rule](read_house(tmp_path)))


class TestCircles:
    def test_of_imports_for_type_checkers_and_in_functions(self, tmp_path: Path) -> None:
        assert found_in(
            tmp_path,
            "circles",
            a__one="from reliamsg.a.two import Two\nfrom reliamsg.c import three\n",
            a__two="if TYPE_CHECKING:\n    from reliamsg.b.four import Four\n",
            b__four="def f():\n    import reliamsg.a.one\n",
            c__three="from reliamsg.a import one\n",
        ) == [
            "a/one.py:1: in a circle of 4 files: imports a.two, c.three",
            "a/two.py:1: in a circle of 4 files: imports b.four",
            "b/four.py:1: in a circle of 4 files: imports a.one",
            "c/three.py:1: in a circle of 4 files: imports a.one",
        ]

    def test_one_way_and_names_from_a_package_are_none(self, tmp_path: Path) -> None:
        assert not found_in(
            tmp_path,
            "circles",
            a__init="from reliamsg.a.one import One\n",
            a__one="from . import two\nfrom .two import Two\n",
            a__two="import os\nfrom reliamsg.b.one import x\n",
            b__one="x = 1\n",
        )


class TestParents:
    @pytest.mark.parametrize(
        "parent",
        [
            "class Parent:\n    def f(self):\n        return Child(self)\n",
            "class Parent:\n    def f(self):\n        return child.Child(self)\n",
            "class Parent:\n    child: list[Child]\n",
            "class Parent:\n    def f(self):\n        self.child: Child | None = None\n",
            "class Parent:\n    def f(self):\n        Middle()\nclass Middle:\n    x = Child(None)\n",
        ],
    )
    @pytest.mark.parametrize(
        "child",
        [
            "class Child:\n    def __init__(self, p: Parent | None): ...\n",
            "class Child:\n    def __init__(self, *, p: 'Sequence[Parent]'): ...\n",
            "@dataclass\nclass Child:\n    p: Parent\n",
            "class Child(NamedTuple):\n    p: Parents\nParents = tuple[Parent, ...]\n",
            "class Child(Base): ...\nclass Base:\n    def __init__(self, p: Parent): ...\n",
        ],
    )
    def test_received(self, tmp_path: Path, parent: str, child: str) -> None:
        head = "from reliamsg.a import child\nfrom reliamsg.a.child import Child\n"
        found = found_in(
            tmp_path,
            "parents",
            a__child="from reliamsg.b.parent import Parent\n" + child,
            b__parent=head + parent,
        )
        assert len(found) == 1
        assert "Child receives Parent, which" in found[0]

    def test_others_are_none(self, tmp_path: Path) -> None:
        assert not found_in(
            tmp_path,
            "parents",
            a="class Made:\n    def __init__(self, settings: Settings, on_end: Callable[[Maker], None]): ...\n"
            "@dataclass\nclass Settings:\n    made: int\n"
            "class Maker:\n    def f(self):\n        return Made(self.settings, self.g)\n"
            "class Node:\n    def __init__(self, next: Node | None):\n        self.last = Node(self)\n",
        )


class TestCallbacks:
    TAKES = (
        "class {name}:\n    def __init__(self, a: Callable[[], int], b: int, c: {c}, d: Done | None): ...\n"
    )
    DONE = "Done = Callable[[], None]\n"

    def test_more_than_two(self, tmp_path: Path) -> None:
        text = self.DONE + self.TAKES.format(name="Public", c="Callable[[], None]")
        assert found_in(tmp_path, "callbacks", a=text) == ["a.py:2: Public takes 3 callbacks: a, c, d"]

    def test_two_and_public_constructors(self, tmp_path: Path) -> None:
        assert not found_in(
            tmp_path,
            "callbacks",
            init="from reliamsg.a import Public\n__all__ = ['Public']\n",
            a=self.DONE + self.TAKES.format(name="Public", c="Callable[[], None]"),
            b=self.DONE + self.TAKES.format(name="Private", c="int"),
        )


class TestAssignments:
    OTHER = "class Other:\n    slow: bool\n    def __init__(self):\n        self.x = 1\n"

    def test_of_other_files_attributes(self, tmp_path: Path) -> None:
        assert found_in(
            tmp_path,
            "assignments",
            other=self.OTHER,
            mine="def f(other):\n    other.x = 2\n    other.x += 2\n    del other.x\n"
            "class Mine:\n    def g(self):\n        self.other.slow, y = True, 1\n",
        ) == [
            "mine.py:2: assigns other.x",
            "mine.py:3: assigns other.x",
            "mine.py:4: assigns other.x",
            "mine.py:7: assigns self.other.slow",
        ]

    def test_of_ones_own_and_of_what_is_not_ours(self, tmp_path: Path) -> None:
        assert not found_in(
            tmp_path,
            "assignments",
            other=self.OTHER + "def make():\n    made = Other()\n    made.x = 2\n    return made\n",
            mine="def f(connection):\n    connection.row_factory = None\n"
            "class Mine:\n    def g(self, x):\n        self.x = x\n        self.items[0] = x\n",
        )


class TestPrivateNames:
    def test_of_other_files(self, tmp_path: Path) -> None:
        other = "_limit = 3\nclass Other:\n    def _f(self):\n        self._x = 1\n"
        assert found_in(
            tmp_path,
            "private-names",
            other=other,
            mine="from reliamsg.other import _limit\ndef f(other):\n    other._f()\n    return other._x\n",
        ) == ["mine.py:1: imports _limit", "mine.py:3: uses other._f", "mine.py:4: uses other._x"]

    def test_of_ones_own_and_of_what_is_not_ours(self, tmp_path: Path) -> None:
        assert not found_in(
            tmp_path,
            "private-names",
            other="class Other:\n    def _f(self):\n        self._x = 1\n",
            mine="from reliamsg.other import Other\nclass Mine(Other):\n    def g(self, other, row):\n"
            "        other._y = row._asdict()\n        return self._x, other.__dict__\n"
            "    def h(self):\n        self._y = 1\n",
        )


class TestParameters:
    def test_more_than_seven(self, tmp_path: Path) -> None:
        assert found_in(
            tmp_path,
            "parameters",
            a="def f(a, b, c, d, /, e, *f, g, **h): ...\n"
            "class A:\n    def g(self, a, b, c, d, e, f, g, h): ...\n"
            "    @staticmethod\n    async def s(a, b, c, d, e, f, g, h): ...\n"
            "i = lambda a, b, c, d, e, f, g, h: 0\n",
        ) == [
            "a.py:1: f has 8 parameters",
            "a.py:3: g has 8 parameters",
            "a.py:5: s has 8 parameters",
            "a.py:6: a lambda has 8 parameters",
        ]

    def test_seven_commands_and_public_constructors(self, tmp_path: Path) -> None:
        assert not found_in(
            tmp_path,
            "parameters",
            init="from reliamsg.a import Public\n__all__ = ['Public']\n",
            a="class Public:\n    def __init__(self, a, b, c, d, e, f, g, h): ...\n"
            "    def g(self, a, b, c, d, e, f, g): ...\n",
            b="@group.command(help='')\n@click.option('--a')\ndef f(a, b, c, d, e, f, g, h): ...\n",
        )
