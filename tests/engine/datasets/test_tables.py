"""Reading of CSV files in every notation; messages about wrong ones name the line and the remedy."""

import tracemalloc
from pathlib import Path

import pandas as pd
import pytest

from engine.datasets import DataProblem, Pairs, check_columns, columns_of, open_pairs
from engine.specs.train import TrainSpec
from tests.support.data import write_image


def open_table(folder: Path, content: str | bytes, name: str = "pairs.csv", **options: str) -> Pairs:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_pairs(str(path), **options)  # type: ignore[arg-type]


def captions(pairs: Pairs) -> list[tuple[str, ...]]:
    return [pairs.captions(index) for index in range(len(pairs))]


@pytest.mark.parametrize("sign", ["\t", ",", ";", "|"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separator_is_detected_from_the_header(tmp_path: Path, sign: str, start: str, end: str) -> None:
    rows = [["filepath", "id", "title"], ["a.png", "1", "one"], ["b.png", "2", "two"]]
    pairs = open_table(tmp_path, start + "".join(sign.join(row) + end for row in rows))
    assert captions(pairs) == [("one",), ("two",)]
    assert pairs.source(1) == str(tmp_path / "b.png")
    assert pairs.name == "pairs"


@pytest.mark.parametrize("header", ["filename,caption", "filepath,title", "image,text", "Image;Text", "image;text, en"])
def test_columns_with_common_names_are_recognised(tmp_path: Path, header: str) -> None:
    sign = ";" if ";" in header else ","
    columns = {"caption_column": "text, en"} if header.endswith(", en") else {}
    assert captions(open_table(tmp_path, f"{header}{sign}label\na.png{sign}one{sign}x\n", **columns)) == [("one",)]
    assert columns_of(str(tmp_path / "pairs.csv")) == [*header.split(sign), "label"]


@pytest.mark.parametrize("separator", ["\t", "\\t", "tab"])
def test_given_separator_and_columns_are_used(tmp_path: Path, separator: str) -> None:
    content = "the image\tcaption, in French\na.png\tun, deux\n"
    columns = {"image_column": "the image", "caption_column": "caption, in French"}
    assert captions(open_table(tmp_path, content, separator=separator, **columns)) == [("un, deux",)]


def test_paths_are_relative_to_the_table(tmp_path: Path) -> None:
    write_image(tmp_path / "there" / "a.png", (1, 2, 3))
    other_image = write_image(tmp_path / "elsewhere" / "b.png", (4, 5, 6))
    write_image(tmp_path / "elsewhere" / "c.png", (7, 8, 9))
    pairs = open_table(tmp_path / "there", f"filepath,title\na.png,one\n{other_image},two\n../elsewhere/c.png,three\n")
    assert [pairs.image(index).getpixel((0, 0)) for index in range(3)] == [(1, 2, 3), (4, 5, 6), (7, 8, 9)]


def test_rows_with_the_same_image_are_its_captions(tmp_path: Path) -> None:
    pairs = open_table(tmp_path, "filepath,title\na.png,one\nb.png,two\na.png,three\na.png,one\n")
    assert captions(pairs) == [("one", "three"), ("two",)]
    assert pairs.notes == ("4 rows are captions of 2 images",)


def test_reading_a_table_takes_little_more_memory_than_its_pairs(tmp_path: Path) -> None:
    """Tables have millions of rows, and the web server reads them, too. A set per row would take twice as much."""
    content = "filepath,title\n" + "".join(f"{row:06d}.png,caption {row}\n" for row in range(5000))
    open_table(tmp_path, content)  # without what is allocated once
    tracemalloc.start()
    try:
        pairs = open_table(tmp_path, content)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(pairs) == 5000
    assert peak < 1.5 * kept


def test_two_spellings_of_a_path_are_one_image(tmp_path: Path) -> None:
    pairs = open_table(
        tmp_path, "filepath,title\nimgs/a.png,one\n./imgs/a.png,two\nimgs//a.png,three\nimgs/b.png,four\n"
    )
    assert captions(pairs) == [("one", "two", "three"), ("four",)]
    assert pairs.source(0) == str(tmp_path / "imgs" / "a.png")


def test_absolute_and_relative_paths_of_a_file_are_one_image(tmp_path: Path) -> None:
    """Also through a linked folder. A path with a NUL byte is the name of no file, and of no other image."""
    image = write_image(tmp_path / "imgs" / "a.png")
    (tmp_path / "link").symlink_to(tmp_path / "imgs")
    spellings = ("imgs/a.png", image, "imgs/../imgs/a.png", "link/a.png", "\0imgs/a.png", "imgs\0/a.png")
    rows = "".join(f"{spelling},{number}\n" for number, spelling in enumerate(spellings))
    pairs = open_table(tmp_path, f"filepath,title\n{rows}")
    assert captions(pairs) == [("0", "1", "2", "3"), ("4",), ("5",)]
    assert pairs.source(0) == str(image)


def test_tables_written_by_pandas_are_read(tmp_path: Path) -> None:
    texts = ["plain", 'she said "hi", and left', "two\nlines", "ünï ☃", "NA", "1"]
    frame = pd.DataFrame({"filepath": [f"{index}.png" for index in range(6)], "title": texts, "more": "x"})
    for sign in "\t,;|":
        frame.to_csv(tmp_path / "pairs.csv", sep=sign, index=False)
        assert captions(open_pairs(str(tmp_path / "pairs.csv"))) == [(text,) for text in texts]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "pairs.csv is empty"),
        ("\n", "the first line of pairs.csv is blank"),
        (
            "a,b\n",
            "no column of images with a common name .filepath, filename, .*. Choose .* Its columns, .*, are 'a', 'b'",
        ),
        ("filepath,title\n", "pairs.csv has no rows"),
        ("url,title\na,b\n", r"Choose it in Image column \(--csv-img-key\). .* separated by ',', are 'url', 'title'"),
        ("url;title\na;b\n", "separated by ';', are 'url', 'title'"),
        ("filepath,words\na,b\n", r"no column of captions .*title, .*Choose it in Caption column \(--csv-cap"),
        (",filepath,words\n0,a,b\n", "no column of captions .* are '', 'filepath', 'words'"),  # as pandas writes it
        (",photo,title\n0,a,b\n", "no column of images .* are '', 'photo', 'title'"),
        ("sep=;\nfilepath;title\na;b\n", "no column of images .* are 'sep=', ''"),
        ("filepath,title,title\na,b,c\n", "needs one column called 'title', but has 2"),
        ("filepath,title\na.png,a cat, asleep\n", "has 3 cells on line 2, but 2 in its header"),
        ("filepath,title\na.png,ok\n\nb.png\n", "has 1 cells on line 4"),
        (
            'filepath,title\na.png,"two\nlines"\nb.png,\nc.png, \n,x\nd.png,\n',
            "4 rows without an image or a caption: line 4, line 5, line 6 and 1 more",
        ),
        ('filepath,title\na.png,ok\nb.png,"open\nc.png,ok\n', 'begins on line 3: .*"He said ""hi"""'),
        ('filepath,title\na.png,"Hello" he said\n', "begins on line 2: ',' expected after '\"'"),
        ("filepath,title\na.png," + "x" * 200_000, "begins on line 2: field larger than field limit"),
        ("x" * 200_000, "begins on line 1|has no column of images"),
        ("filepath,title\na.png,caf\xe9\n".encode("latin-1"), "is not in UTF-8"),
        ("filepath,title\na.png,one\n".encode("utf-16"), "is not in UTF-8"),
    ],
)
def test_wrong_tables_are_refused_with_the_reason(tmp_path: Path, content: str | bytes, reason: str) -> None:
    with pytest.raises(DataProblem, match=reason) as refusal:
        open_table(tmp_path, content)
    assert "pairs.csv" in str(refusal.value)
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize("sign", [",,", '"', "\n", "comma or so"])
def test_invalid_separators_are_refused(tmp_path: Path, sign: str) -> None:
    with pytest.raises(DataProblem, match="cannot separate columns: give one character, or tab, comma"):
        open_table(tmp_path, "filepath,title\na,b\n", separator=sign)


def test_table_with_another_ending_is_read_if_its_kind_is_given(tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text("filepath,title\na,b\n")
    assert captions(open_pairs(str(tmp_path / "pairs.txt"), "csv")) == [("b",)]


def test_columns_of_a_training_are_checked_without_opening_the_images(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right.txt", tmp_path / "wrong.txt"
    right.write_text("filepath,title\na.png,one\n")
    wrong.write_text("filepath,words\na.png,one\n")
    fields = {"data": str(right), "data_kind": "csv"}
    check_columns(TrainSpec.model_validate(fields))
    with pytest.raises(DataProblem, match=r"wrong\.txt has no column of captions"):
        check_columns(TrainSpec.model_validate(fields | {"val_data": str(wrong)}))


def test_class_column_labels_the_images(tmp_path: Path) -> None:
    content = "filepath,title,kind\na.png,one,zebra\nb.png,two,ant\na.png,three,zebra\n"
    pairs = open_table(tmp_path, content, class_column="kind")
    assert pairs.classes == ("ant", "zebra")
    assert [pairs.label(index) for index in range(2)] == [1, 0]
    assert captions(pairs) == [("one", "three"), ("two",)]
    without = open_table(tmp_path, content)
    assert (without.classes, without.label(0)) == ((), None)


def test_captions_are_made_of_classes_if_no_column_has_captions(tmp_path: Path) -> None:
    pairs = open_table(tmp_path, "filepath,kind\na.png,10\nb.png,9\n", class_column="kind")
    assert pairs.classes == ("9", "10")
    assert captions(pairs) == [("a photo of a 10.",), ("a photo of a 9.",)]
    assert pairs.notes == ("there is no column of captions: captions are made of the class names",)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("filepath,title\na.png,one\n", "needs one column called 'kind', but has 0"),
        ("filepath,title,kind\na.png,one,\n", "1 row without an image or a caption or a class: line 2"),
        ("filepath,title,kind\na.png,,cat\n", "1 row without an image or a caption or a class: line 2"),
        ("filepath,title,kind\na.png,one,cat\na.png,two,dog\n", r"more than one class: a.png \(cat, dog\)"),
    ],
)
def test_wrong_class_columns_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    with pytest.raises(DataProblem, match=reason):
        open_table(tmp_path, content, class_column="kind")
