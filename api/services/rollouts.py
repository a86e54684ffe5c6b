"""Training samples as documents, and a page of them as a Parquet file."""

import json
from typing import Any, BinaryIO

from core.store.models import Rollout

PARQUET = "application/vnd.apache.parquet"


def document(row: Rollout) -> dict[str, Any]:
    """A sample as the API shows it."""
    return {
        "id": str(row.id),
        "run_id": row.run_id,
        "attempt": row.attempt,
        "step": row.step,
        "group_index": row.group_index,
        "item_id": row.item_id,
        "sample": row.sample,
        "prompt_sha256": row.prompt_sha256,
        "token_ids": row.token_ids,
        "text": row.text,
        "reward": row.reward,
        "reward_terms": row.reward_terms,
        "verdict": row.verdict,
        "reason": row.reason,
        "extracted": row.extracted,
        "advantage": row.advantage,
        "logp_mean": row.logp_mean,
        "n_tokens": row.n_tokens,
        "finish_reason": row.finish_reason,
        "zero_variance": row.zero_variance,
        "used": row.used,
        "weights_version": row.weights_version,
        "superseded": row.superseded,
    }


def write_parquet(rows: list[dict[str, Any]], file: BinaryIO) -> None:
    """Write samples with a fixed schema, so that pages of different content can be concatenated.

    Reward terms differ from run to run and are kept as JSON text.
    """
    import pyarrow as pa
    from pyarrow import parquet

    text, integer, real, flag = pa.string(), pa.int64(), pa.float64(), pa.bool_()
    schema = pa.schema(
        {
            "id": text,
            "run_id": text,
            "attempt": integer,
            "step": integer,
            "group_index": integer,
            "item_id": text,
            "sample": integer,
            "prompt_sha256": text,
            "token_ids": pa.list_(pa.int32()),
            "text": text,
            "reward": real,
            "reward_terms": text,
            "verdict": text,
            "reason": text,
            "extracted": text,
            "advantage": real,
            "logp_mean": real,
            "n_tokens": integer,
            "finish_reason": text,
            "zero_variance": flag,
            "used": flag,
            "weights_version": integer,
            "superseded": flag,
        }
    )
    plain = [row | {"reward_terms": json.dumps(row["reward_terms"], sort_keys=True)} for row in rows]
    parquet.write_table(pa.Table.from_pylist(plain, schema=schema), file, compression="zstd")
