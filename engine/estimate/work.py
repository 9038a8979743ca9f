"""Read the work of every model from the catalogue: FLOPs, bytes, weights and calls by kind of operator."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from engine.specs import Refused

Floats = npt.NDArray[np.float64]

AS_PRODUCTS = {"mkldnn_rnn_layer": "addmm"}
"""Recurrent layers are matrix products, and too few models have them for a cost of their own."""
FLOPS = tuple("addmm mm bmm scaled_dot_product_attention convolution grouped_convolution depthwise_convolution".split())
"""Kinds of operators with their own cost per FLOP."""
CALLS = (*FLOPS, "native_batch_norm", "native_layer_norm")
"""Kinds with a cost per call; all others share one."""
BYTES = tuple(
    """
    convolution add addmm mean mul native_batch_norm gelu native_layer_norm relu depthwise_convolution
    scaled_dot_product_attention cat clone sigmoid avg_pool2d bmm silu mm max_pool2d_with_indices _softmax
    constant_pad_nd grouped_convolution div index stack pow _to_copy arange sub linalg_vector_norm cos sin neg
    clamp_min hardsigmoid native_group_norm""".split()
)
"""Kinds with their own cost per byte: the 36 that occur in most models. All others share one."""
OTHER = "other"
WEIGHTED = tuple(kind for kind in FLOPS if kind != "scaled_dot_product_attention")
"""Kinds with weights. A batch reads the weights once, and all other bytes once per image."""
FEATURES = (
    *(f"{kind}:gflop" for kind in FLOPS),
    *(f"{kind}:gb" for kind in (*BYTES, OTHER)),
    *(f"{kind}:call" for kind in (*CALLS, OTHER)),
    "batch:call",
)
"""Work that a sample is charged for: GFLOPs and GB of a kind, and its share of the batch's calls."""
KEY = ["name", "image_size"]
OPERATORS = "operators.csv.gz"
SIZES = {"image_size": str, "test_size": str}
COLUMNS = "library model image_size test_size context_length family gflops macts weights_mb complete status".split()


def read(catalog_dir: Path) -> pd.DataFrame:
    """Return the work of one image (or image and text) of every completely counted model, with the index KEY.

    Columns: `family`, `context_length` (tokens per text, if any), `timed_size` (image size of an inference timing whose
    request has none), and for each kind `flop:KIND` in GFLOPs, `byte:KIND` in GB without weights, `weight:KIND` in GB,
    `call:KIND`. Operators were counted at the models' own sizes. At other sizes, FLOPs grow with the counted FLOPs,
    bytes with the counted activations; weights and calls stay. Errors: Refused when the operators were not counted.
    """
    if not (catalog_dir / OPERATORS).is_file():
        raise Refused(f"no counted operators in {catalog_dir}: `python -m engine catalog-build` counts them")
    files = [*sorted(catalog_dir.glob("*.csv")), *sorted(catalog_dir.glob("sizes/*.csv"))]
    models = pd.concat(pd.read_csv(path, dtype=SIZES, usecols=[*COLUMNS]) for path in files)
    models = models[(models["status"] == "ok") & models["complete"].astype(bool)]
    models.insert(0, "name", models["library"] + ":" + models["model"])
    models = models.drop_duplicates(KEY).set_index("name")

    operators = pd.read_csv(catalog_dir / OPERATORS, dtype={"image_size": str})
    operators["name"] = operators["library"] + ":" + operators["model"]
    operators["operator"] = operators["operator"].replace(AS_PRODUCTS)
    flops, calls = _sums(operators, "flops", FLOPS) / 1e9, _sums(operators, "calls", CALLS)
    reads, writes = _sums(operators, "read_bytes", BYTES) / 1e9, _sums(operators, "written_bytes", BYTES) / 1e9

    counted = models.join(operators.groupby("name")["image_size"].first().rename("own_size"))
    counted = counted[counted["image_size"] == counted["own_size"]]
    models = models[models.index.isin(counted.index)]
    # The catalogue has the weights of a model, not of a kind: divide them in proportion to what the kinds read.
    weighted = reads.loc[counted.index, list(WEIGHTED)]
    total = weighted.sum(axis=1)
    weights = weighted.mul((np.minimum(counted["weights_mb"] / 1e3, total) / total).fillna(0), axis=0)
    images = (reads + writes).loc[counted.index].sub(weights, fill_value=0)

    names = models.index
    timed_size = models["test_size"].fillna(counted.loc[names, "image_size"]).rename("timed_size")
    ratios = {column: (models[column] / counted.loc[names, column]).fillna(1) for column in ("gflops", "macts")}
    table = pd.concat(
        [
            models[["image_size", "family", "context_length"]],
            timed_size,
            flops.loc[names, list(FLOPS)].mul(ratios["gflops"], axis=0).add_prefix("flop:"),
            images.loc[names].mul(ratios["macts"], axis=0).add_prefix("byte:"),
            weights.loc[names].add_prefix("weight:"),
            calls.loc[names].add_prefix("call:"),
        ],
        axis=1,
    )
    return table.set_index("image_size", append=True)


def _sums(operators: pd.DataFrame, column: str, kinds: tuple[str, ...]) -> pd.DataFrame:
    """Return the sums of a column: a row per model, a column per kind, and one for all other kinds."""
    kind = operators["operator"].where(operators["operator"].isin(kinds), OTHER)
    sums = operators.assign(kind=kind).pivot_table(column, "name", "kind", "sum", fill_value=0)
    return sums.reindex(columns=[*kinds, OTHER], fill_value=0).astype(float)


def features(work: pd.DataFrame, batch_sizes: Floats | int) -> Floats:
    """Return FEATURES of one sample of each model, shape (models, features).

    batch_sizes: samples per call, one number for all models or one per model.
    """
    batch = np.broadcast_to(np.asarray(batch_sizes, dtype=float), len(work))[:, None]
    moved = work[[f"byte:{kind}" for kind in (*BYTES, OTHER)]].to_numpy(copy=True)
    moved[:, [BYTES.index(kind) for kind in WEIGHTED]] += work[[f"weight:{kind}" for kind in WEIGHTED]] / batch
    flops = work[[f"flop:{kind}" for kind in FLOPS]].to_numpy()
    calls = work[[f"call:{kind}" for kind in (*CALLS, OTHER)]].to_numpy()
    return np.hstack([flops, moved, calls / batch, 1 / batch])
