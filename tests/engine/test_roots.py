"""Only files below the data roots are read, despite links, replaced files and special files."""

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from engine.datasets import DataProblem, Pairs, Unreadable, images, open_pairs, unpack
from engine.datasets.formats.members import entries_in
from engine.roots import expand_home, file_within, files_within, open_within, scan_within, stat_within
from tests.support.data import encoded, write_classes, write_image, write_tar

SECRET = (9, 99, 199)
"""The colour of the image outside the roots."""


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder outside the roots, with a file of every kind that data sets have."""
    folder = write_classes(tmp_path / "outside", {"classes/dog": 1})
    write_image(folder / "secret.png", SECRET)
    (folder / "secret.txt").write_text("a secret")
    (folder / "secret.json").write_text('{"caption": "a secret"}')
    (folder / "secret.cls").write_text("1")
    (folder / "classnames.txt").write_text("secret 0\nsecret 1\n")
    (folder / "templates.txt").write_text("a secret {c}\n")
    (folder / "secret.csv").write_text("filepath,title\nsecret.png,a secret\n")
    write_tar(folder / "secret.tar", {"1.png": encoded(SECRET), "1.txt": b"a secret"})
    return folder


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    """Return the only root, with two images and their captions in the folder `pairs`."""
    folder = tmp_path / "inside"
    for name in ("a", "b"):
        write_image(folder / "pairs" / f"{name}.png")
        (folder / "pairs" / f"{name}.txt").write_text(f"a picture of {name}")
    return folder


def link(path: Path, target: Path) -> None:
    """Create a link, and replace the file that is at its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def texts_of(pairs: Pairs) -> set[str]:
    """Return the captions, sources, class names and templates of a data set."""
    texts = {caption for index in range(len(pairs)) for caption in pairs.captions(index)}
    return texts | {pairs.source(index) for index in range(len(pairs))} | {*pairs.classes, *pairs.templates}


def open_data(path: Path, root: Path, kind: str = "auto") -> Pairs:
    return open_pairs(str(path), kind, roots=(root,))  # type: ignore[arg-type]


def test_linked_table_is_absent(inside: Path, outside: Path) -> None:
    link(inside / "table" / "pairs.csv", outside / "secret.csv")
    write_image(inside / "table" / "secret.png")
    for path in (inside / "table", inside / "table" / "pairs.csv"):
        with pytest.raises(DataProblem) as refusal:
            open_data(path, inside)
        assert "secret" not in str(refusal.value)


def test_linked_image_is_absent(inside: Path, outside: Path) -> None:
    """A link that leaves the roots is not counted, because the count would reveal that its target exists."""
    write_classes(inside / "pets", {"cat": 1})
    link(inside / "pets" / "cat" / "1.png", outside / "secret.png")
    link(inside / "pets" / "cat" / "2.png", outside / "nothing.png")
    link(inside / "pets" / "cat" / "3.png", inside / "pairs" / "a.png")
    pairs = open_data(inside / "pets", inside)
    assert [Path(pairs.source(index)).name for index in range(len(pairs))] == ["000.png", "3.png"]
    assert pairs.image(1).size == (8, 6), "a link inside the roots is followed"


def test_linked_folder_is_absent(inside: Path, outside: Path) -> None:
    write_classes(inside / "pets", {"cat": 1, "cow": 1})
    link(inside / "pets" / "dog", outside / "classes" / "dog")
    link(inside / "pets" / "calf", inside / "pets" / "cow")
    assert open_data(inside / "pets", inside).classes == ("calf", "cat", "cow")
    rows = "filepath,title\ncat/000.png,mine\ndog/000.png,theirs\n"
    (inside / "pets" / "pairs.csv").write_text(rows)
    table = open_data(inside / "pets" / "pairs.csv", inside)
    with pytest.raises(Unreadable, match="there is no such file"):
        table.image(1)


@pytest.mark.parametrize("name", ["a.txt", "a.json", "a.cls", "a.png"])
def test_linked_member_of_unpacked_shards_is_absent(inside: Path, outside: Path, name: str) -> None:
    folder = inside / "pairs"
    (folder / "classnames.txt").write_text("first\nsecond\n")
    if name != "a.png":
        (folder / "a.txt").unlink()
    link(folder / name, outside / f"secret{Path(name).suffix}")
    pairs = open_data(folder, inside, "webdataset")
    assert [Path(pairs.source(index)).name for index in range(len(pairs))] == ["b.png"]
    assert "a secret" not in texts_of(pairs)


def test_linked_member_of_an_upload_is_absent(inside: Path, outside: Path) -> None:
    """Somebody with write access to the folder of an unpacked upload could create such a link."""
    files = {"a.png": encoded(), "a.txt": b"a cat", "b.png": encoded(), "b.txt": b"a dog"}
    with write_tar(inside / "up.tar", files).open("rb") as upload:
        folder, kind = unpack(upload, "up.tar", inside / "uploads" / "up")
    link(folder / "b.txt", outside / "secret.txt")
    assert open_data(folder, inside, kind).captions(0) == ("a cat",)
    assert len(open_data(folder, inside, kind)) == 1


def test_linked_shard_is_absent(inside: Path, outside: Path) -> None:
    write_tar(inside / "shards" / "0.tar", {"1.png": encoded(), "1.txt": b"mine"})
    link(inside / "shards" / "1.tar", outside / "secret.tar")
    assert "a secret" not in texts_of(open_data(inside / "shards", inside))
    for source in (inside / "shards" / "1.tar", inside / "shards" / "{0..1}.tar"):
        with pytest.raises(DataProblem, match=r"1 of \d shards? missing"):
            open_data(source, inside)


@pytest.mark.parametrize("name", ["classnames.txt", "zeroshot_classification_templates.txt"])
def test_linked_class_names_and_templates_are_absent(inside: Path, outside: Path, name: str) -> None:
    link(inside / "pairs" / name, outside / ("classnames.txt" if name == "classnames.txt" else "templates.txt"))
    assert not any("secret" in text for text in texts_of(open_data(inside / "pairs", inside, "webdataset")))


def test_shard_that_becomes_a_link_is_absent(inside: Path, outside: Path) -> None:
    """Members are read again for each image, at the offset that they had when the shard was opened."""
    shard = write_tar(inside / "0.tar", {"1.png": encoded(), "1.txt": b"mine"})
    pairs = open_data(shard, inside)
    link(shard, outside / "secret.tar")
    with pytest.raises(Unreadable, match="there is no such file"):
        pairs.image(0)


def test_path_through_an_outside_folder_does_not_reveal_it(inside: Path, outside: Path) -> None:
    """The system treats `exists/../x` and `absent/../x` differently."""
    (inside / "table.csv").write_text("filepath,title\npairs/a.png,mine\n")
    for name in ("classes", "secret.txt", "nothing"):
        assert len(open_data(outside / name / ".." / ".." / "inside" / "table.csv", inside)) == 1


@pytest.mark.parametrize("replaced", ["file", "folder"])
def test_file_replaced_by_a_link_after_the_check_is_not_read(
    inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    """The file is replaced right after its path was resolved."""
    path = inside / "pairs" / "secret.png"
    write_image(path)
    resolve = os.path.realpath

    def resolve_then_swap(name: str | Path, *, strict: bool = False) -> str:
        real = resolve(name, strict=strict)
        if str(name) == str(path) and not (path.is_symlink() or path.parent.is_symlink()):
            victim = path if replaced == "file" else path.parent
            victim.rename(inside / "aside")
            victim.symlink_to(outside / "secret.png" if replaced == "file" else outside)
        return str(real)

    monkeypatch.setattr(os.path, "realpath", resolve_then_swap)
    with pytest.raises(Unreadable, match="there is no such file"):
        images.read(path, (inside,))
    assert images.read(path).getpixel((0, 0)) == SECRET, "the file was replaced"


def test_link_that_changes_all_the_time_never_reads_outside(inside: Path, outside: Path) -> None:
    path, stop = inside / "turning.txt", threading.Event()
    link(path, inside / "pairs" / "a.txt")

    def switch_link() -> None:
        for target in (outside / "secret.txt", inside / "pairs" / "a.txt") * 2000:
            link(inside / "next", target)
            (inside / "next").replace(path)
            if stop.is_set():
                return

    thread = threading.Thread(target=switch_link)
    thread.start()
    try:
        for _ in range(2000):
            try:
                with open_within(path, (inside,)) as file:
                    assert file.read() == b"a picture of a"
            except FileNotFoundError:
                continue
    finally:
        stop.set()
        thread.join()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "source", "kind"),
    [
        ("0.tar", "{0..0}.tar", "webdataset"),
        ("pairs.csv", "pairs.csv", "csv"),
        ("pairs.csv", "pairs.csv", "auto"),
        ("pairs.csv", ".", "auto"),
    ],
)
def test_named_pipe_is_absent_and_does_not_block(tmp_path: Path, name: str, source: str, kind: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataProblem, match=r"there is no|1 shard missing|has no images"):
        open_data(tmp_path / source, tmp_path, kind)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["a.txt", "a.png", "classnames.txt"])
def test_named_pipe_among_pairs_is_absent(inside: Path, name: str) -> None:
    (inside / "pairs" / "a.json").write_text('{"caption": "from json"}')
    (inside / "pairs" / name).unlink(missing_ok=True)
    os.mkfifo(inside / "pairs" / name)
    pairs = open_data(inside / "pairs", inside, "webdataset")
    assert len(pairs) == (1 if name == "a.png" else 2)


@pytest.mark.timeout(60)
def test_every_unreadable_path_gives_the_same_error(
    inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(inside / "pipe")
    link(inside / "circle", inside / "circle")
    link(inside / "out", outside / "secret.txt")
    link(inside / "dangling", outside / "nothing.txt")
    monkeypatch.chdir(inside)  # the path of a socket has at most about 100 characters
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        names = ["pipe", "circle", "out", "dangling", "socket", "absent", "pairs", "pairs/a.txt/b", "a\0b", "x" * 300]
        paths = [*(inside / name for name in names), outside / "secret.txt", outside / "nothing.txt"]
        paths += [Path("/etc/passwd"), Path("/dev/zero"), expand_home("~nobody-here/x"), expand_home("~a\0b")]
        for path in paths:
            with pytest.raises(FileNotFoundError) as refusal:
                open_within(path, (inside,))
            text = "there is no such file in the folders of VITALS_DATA_ROOTS"
            assert (refusal.value.strerror, refusal.value.filename) == (text, str(path))
            assert not file_within(path, (inside,))
            assert bool(stat_within(path, (inside,))) == (path.name == "pairs")
        assert {entry.path.name for entry in scan_within(inside, (inside,))} == {"pairs"}
        assert len(list(files_within(inside, (inside,)))) == 4


def test_files_below_a_root_are_read_by_any_path(inside: Path, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link(outside / "way-in", inside / "pairs")
    link(inside / "link", inside / "pairs" / "a.txt")
    monkeypatch.chdir(inside / "pairs")
    paths: list[tuple[Path, tuple[Path, ...] | None]] = [
        (inside / "link", (inside,)),
        (outside / "way-in" / "a.txt", (inside,)),
        (inside / "pairs" / ".." / "pairs" / "a.txt", (outside, inside)),
        (Path("a.txt"), (inside,)),
        (inside / "pairs" / "a.txt", (Path("/"),)),
        (inside / "link", None),
    ]
    for path, roots in paths:
        with open_within(path, roots) as file:
            assert file.read() == b"a picture of a"
    with pytest.raises(FileNotFoundError):
        open_within(inside / "pairs" / "a.txt", (inside / "pair",))  # the path begins with the same characters


def test_large_folders_are_sorted_by_name(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To sort a folder of 600,000 files by path took a minute."""
    with monkeypatch.context() as patched:
        patched.setattr(PurePath, "__lt__", lambda *_: pytest.fail("compares paths"))
        assert [entry.name for entry in entries_in(inside / "pairs")] == ["a.png", "a.txt", "b.png", "b.txt"]


def test_no_descriptor_is_left_open(inside: Path, outside: Path) -> None:
    def open_some_paths() -> None:
        for path in (inside / "pairs" / "a.txt", inside / "pairs", inside / "absent" / "x", outside / "secret.txt"):
            try:
                open_within(path, (inside,)).close()
            except FileNotFoundError:
                pass
            stat_within(path, (inside,))
        next(iter(scan_within(inside, (inside,))))

    assert _descriptors_after(open_some_paths) == _descriptors_after(open_some_paths)


def _descriptors_after(action: Callable[[], None]) -> int:
    """Run `action` and return the lowest free descriptor, which is the next that the system gives."""
    action()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor
