"""The commands about evaluations: list, compare, grade again, and records as files."""

import os
import sys
from pathlib import Path

from client import commands, following, words
from client.api import DriftlineClient, Json
from client.errors import ClientError

LISTED = 12


def evaluations(run_id: str, *, as_json: bool) -> int:
    """A run's evaluations with their ids."""
    with DriftlineClient() as client:
        rows = client.evaluations(run_id)
    if as_json:
        commands.print_json({"data": rows})
        return 0
    from client import tables

    table = tables.grid(
        ["id", "purpose", "step", "model", "suite", "samples", "items", "accuracy", "95 %", "verifier", "regrades"],
        right=["step", "samples", "items", "accuracy"],
    )
    for row in rows:
        step = words.NONE if row["step"] is None else str(row["step"])
        table.add_row(
            row["id"],
            row["purpose"],
            step,
            row["model_ref"] or words.NONE,
            row["suite"],
            str(row["samples"]),
            str(row["n_items"]),
            _share(row["accuracy"]),
            _interval(row["ci"]),
            row["verifier_version"] or words.NONE,
            ", ".join(one["verifier_version"] for one in row["regrades"]) or words.NONE,
        )
    commands.print_parts(table)
    return 0


def compare(a: str, b: str, *, verdicts: str, noise: str | None, as_json: bool) -> int:
    """What ``b`` lost and gained against ``a``."""
    with DriftlineClient() as client:
        found = client.diff(a, b, verdicts=verdicts, noise=noise)
    if as_json:
        commands.print_json(found)
        return 0
    from client import tables

    low, high = found["ci"]
    commands.print_parts(
        tables.facts([
            ("suite", f"{found['suite']}, {found['n']} items that both judged"),
            ("left out", _left_out(found)),
            ("before (A)", _share(found["a_accuracy"])),
            ("now (B)", _share(found["b_accuracy"])),
            ("difference", f"{100 * found['delta']:+.2f} points, 95 % from {100 * low:+.2f} to {100 * high:+.2f}"),
            ("lost", f"{found['lost']:g}"),
            ("gained", f"{found['gained']:g}"),
            ("p", f"{found['p_value']:.4g} ({found['test']})"),
            ("noise floor", _noise(found["noise_floor"])),
            ("verdicts", f"{found['verdicts']} ({found['verifier_version'] or 'version not known'})"),
            ("lost items", _names(found["lost_items"])),
            ("gained items", _names(found["gained_items"])),
        ])
    )  # fmt: skip
    return 0


def regrade(evaluation_id: str, *, detach: bool, as_json: bool) -> int:
    """Grade an evaluation's stored answers again, and follow the run that does it."""
    with DriftlineClient() as client:
        run = client.regrade(evaluation_id)
        if not detach:
            return following.accompany(client, run, as_json=as_json)
        if as_json:
            commands.print_json(run)
        else:
            print(f"run {run['id']} is queued  {client.page_url(run['id'])}")
        return 0


def export_records(evaluation_id: str, *, form: str, output: str | None, as_json: bool) -> int:
    """All records of an evaluation as a file."""
    with DriftlineClient() as client:
        return _save(client, client.records_path(evaluation_id), {"format": form}, output, as_json=as_json)


def export_rollouts(run_id: str, *, form: str, step: int | None, output: str | None, as_json: bool) -> int:
    """All training samples of a run as a file."""
    with DriftlineClient() as client:
        params = {"format": form} | ({"step": str(step)} if step is not None else {})
        return _save(client, client.rollouts_path(run_id), params, output, as_json=as_json)


def _save(client: DriftlineClient, path: str, params: dict[str, str], output: str | None, *, as_json: bool) -> int:
    """Write the file under its own name or ``output``; one that is not complete is never seen under that name."""
    with client.download(path, params) as (name, chunks):
        if output == "-":
            for chunk in chunks:
                sys.stdout.buffer.write(chunk)
            sys.stdout.flush()
            return 0
        target = Path(output or name)
        aside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with aside.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
            aside.replace(target)
        except OSError as error:
            raise ClientError(
                f"cannot write {target}: {error.strerror}", param="--output", hint="name a file that can be written"
            ) from None
        finally:
            aside.unlink(missing_ok=True)
    size = target.stat().st_size
    if as_json:
        commands.print_json({"file": str(target), "bytes": size})
    else:
        print(f"{target}  {size} bytes")
    return 0


def _share(value: float | None) -> str:
    return words.NONE if value is None else f"{100 * value:.2f} %"


def _interval(ci: list[float] | None) -> str:
    return words.NONE if ci is None else f"{100 * ci[0]:.1f} to {100 * ci[1]:.1f}"


def _noise(floor: Json | None) -> str:
    if floor is None:
        return "not known: the run has no two base evaluations (--noise names two of one model)"
    return (
        f"two evaluations of one model: {100 * floor['flipped_share']:.2f} % of items flip "
        f"({floor['lost']} lost, {floor['gained']} gained of {floor['n']})"
    )


def _left_out(found: Json) -> str | None:
    parts = [f"{found[f'only_{side}']} only in {side.upper()}" for side in ("a", "b") if found[f"only_{side}"]]
    if found["same_data"] is False:
        parts.append("the two asked of sets with different content")
    return "; ".join(parts) or None


def _names(items: list[str]) -> str | None:
    more = f" and {len(items) - LISTED} more" if len(items) > LISTED else ""
    return (", ".join(items[:LISTED]) + more) or None
