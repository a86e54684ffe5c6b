"""Outputs along checkpoints: against unchunked forwards in float32, planted trajectories, and through the real job."""

import gc
import shutil
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file, save_file
from scipy import stats

from core.dynamics import activations, scoring, tokens
from core.dynamics.job import run_analysis
from core.dynamics.probes import ProbeSequence
from core.dynamics.trajectory import Jumped, Point
from core.engines.models import load_model, load_tokenizer
from core.jobs import UserError
from core.recipes import family_hash, load_recipe, parse_recipe, recipe_hash, resolved
from core.store import analyses, runs
from tests.core.engines.conftest import make_llama, make_tokenizer
from tests.core.train.service import Service

STEPS = (0, 10, 20, 30, 50)
CPU = torch.device("cpu")
PROBES = [
    ProbeSequence("a", 0, (1, 5, 9), (4, 6, 7, 2)),
    ProbeSequence("a", 1, (1, 5, 9), (8,)),
    ProbeSequence("b", 0, (3, 2, 2, 7, 11), (12, 4, 4, 4, 9, 10)),
]


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """A model whose weights move along one direction, with a bend in the middle."""
    home = tmp_path_factory.mktemp("outputs")
    model, tokenizer = make_llama(), make_tokenizer()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(3)
    direction = {name: 0.002 * torch.randn(value.shape, generator=generator) for name, value in start.items()}
    found = []
    for step in STEPS:
        model.load_state_dict({name: start[name] + step / 50 * direction[name] for name in start})
        model.save_pretrained(home / f"step-{step}")
        tokenizer.save_pretrained(home / f"step-{step}")
        found.append(Point(step, home / f"step-{step}"))
    return found


def unchunked(point):
    """Log-probs and logits of the probes' completion tokens, one sequence at a time with all logits."""
    model = load_model(point.folder, torch.float32, CPU)
    logp, logits = [], []
    for one in PROBES:
        ids = torch.tensor([one.prompt_ids + one.completion_ids])
        with torch.no_grad():
            all_logits_TV = model(input_ids=ids).logits[0]
        rows = range(len(one.prompt_ids) - 1, ids.shape[1] - 1)
        for row, token in zip(rows, one.completion_ids, strict=True):
            logits.append(float(all_logits_TV[row, token]))
            logp.append(float(all_logits_TV[row].log_softmax(-1)[token]))
    return np.array(logp), np.array(logits)


@pytest.mark.parametrize("budget", [1, 12, 4096])
def test_scores_are_those_of_an_unchunked_forward(points, budget):
    logp, logits = unchunked(points[2])
    model = load_model(points[2].folder, torch.float32, CPU)
    batches = scoring.probe_batches(PROBES, CPU, batch_tokens=budget)
    found_logp, found_logits = scoring.score_tokens(model, batches, len(logp), chunk=3)
    np.testing.assert_allclose(found_logp, logp, atol=2e-5)
    np.testing.assert_allclose(found_logits, logits, atol=2e-5)


def scored(points):
    return tokens.score_points(points, PROBES, dtype=torch.float32, device=CPU, progress=lambda done, total: None)


def test_points_are_scored_as_an_unchunked_forward_scores_them(points):
    """Through the lean layers, where the oracle runs the library's."""
    found = scored(points)
    for row, point in enumerate(points):
        logp, logits = unchunked(point)
        np.testing.assert_allclose(found["logp"][row], logp, atol=2e-5)
        np.testing.assert_allclose(found["logit"][row], logits, atol=2e-5)


def test_one_checkpoints_weights_are_in_memory_at_a_time(points, monkeypatch):
    """Without the help of Python's search for cycles, which comes late."""
    loaded = []

    def load(*args):
        assert not [at for at, weight in enumerate(loaded) if weight() is not None]
        model = load_model(*args)
        loaded.append(weakref.ref(model.model.layers[0].mlp.gate_proj.weight))
        return model

    monkeypatch.setattr(scoring, "load_model", load)
    gc.disable()
    try:
        scored(points)
    finally:
        gc.enable()
    assert len(loaded) == len(STEPS)


def test_jumps_are_taken_out_of_the_tokens_paths(points):
    """Points 0, 10, 20 with the third as if jumped to from 0 with beta 2: the path has there what the second holds."""
    rows = scored([points[0], points[1], replace(points[2], step=11, jumped=Jumped(0, 2.0)), points[3]])["logp"]
    plain = scored(points)["logp"]
    np.testing.assert_allclose(rows[2], plain[1], atol=1e-4)
    np.testing.assert_allclose(rows[3], plain[3] - (plain[2] - plain[1]), atol=1e-4)


def test_tokens_are_measured_as_scipy_does(points):
    values_KT = scored(points)["logp"]
    tokenizer = load_tokenizer(points[0].folder)
    result, tables = tokens.token_result(
        values_KT, STEPS, PROBES, tokenizer, noun="tokens", threshold=0.7, seed=0, drive=None
    )
    table = tables["tokens"]
    for at in range(values_KT.shape[1]):
        line = stats.linregress(STEPS, values_KT[:, at])
        assert table["r2"][at] == pytest.approx(line.rvalue**2, rel=1e-6)
        assert table["slope"][at] == pytest.approx(line.slope, rel=1e-6)
        assert table["variance"][at] == pytest.approx(values_KT[:, at].var(), rel=1e-9)
    assert result["r2"]["share_above"] == np.mean(np.array(table["r2"]) > 0.7)
    assert result["statement"].startswith("Excess over chance")
    assert [len(one["tokens"]) for one in result["text"]] == [4, 1, 6]
    assert table["item"] == ["a"] * 5 + ["b"] * 6
    assert result["text"][2]["slope"] == table["slope"][5:].tolist()


def test_tokens_fall_into_the_three_categories():
    variance = np.array([9.0, 8.0, 0.1, 0.0])
    found = tokens.categories(variance, np.array([0.9, 0.2, 0.9, 0.0]), high=5.0, threshold=0.7)
    assert found.tolist() == ["high_variance_high_r2", "high_variance_low_r2", "low_variance", "low_variance"]


def test_tokens_that_walk_are_no_more_linear_than_chance():
    rng = np.random.default_rng(0)
    steps = tuple(20 * k for k in range(14))
    values = rng.standard_normal((14, 600)).cumsum(axis=0)
    probes = [ProbeSequence("a", 0, (1,), tuple(rng.integers(2, 30, size=600).tolist()))]
    for drift, words in ((0.0, "no linearity beyond chance"), (1.0, "more linear than chance")):
        moved = values + drift * np.arange(14)[:, None] * rng.choice([-1, 1], size=600)
        result, _ = tokens.token_result(
            moved, steps, probes, make_tokenizer(), noun="tokens", threshold=0.7, seed=0, drive=None
        )
        assert words in result["statement"]


def test_hidden_states_are_those_that_transformers_gives(points):
    names, values_LKS = activations.hidden_paths(
        points, PROBES, sample=50, seed=1, dtype=torch.float32, device=CPU, progress=lambda done, total: None
    )
    model = load_model(points[3].folder, torch.float32, CPU)
    layers = len(model.model.layers)
    assert names == ["embedding", *(str(at) for at in range(layers))]
    assert values_LKS.shape == (layers + 1, len(STEPS), 50)
    expected = []
    for one in PROBES:
        with torch.no_grad():
            states = model(input_ids=torch.tensor([one.prompt_ids + one.completion_ids]), output_hidden_states=True)
        rows = slice(len(one.prompt_ids) - 1, len(one.prompt_ids) + len(one.completion_ids) - 1)
        # transformers' last entry is after the final norm; the blocks' own outputs are those before it.
        expected.append(torch.stack([state[0, rows] for state in states.hidden_states[:-1]]))
    all_LTH = torch.cat(expected, dim=1).double().numpy()
    rng = np.random.default_rng(activations.stream_seed(1, "activations", "sample"))
    at_S, dim_S = rng.integers(all_LTH.shape[1], size=50), (rng.random(50) * all_LTH.shape[2]).astype(int)
    np.testing.assert_allclose(values_LKS[:layers, 3], all_LTH[:, at_S, dim_S], atol=1e-5)
    result = activations.activation_result(names, values_LKS, STEPS, threshold=0.7, seed=0, drive=None)
    assert [one["layer"] for one in result["layers"]] == names
    assert result["layers"][0]["mean"] == pytest.approx(1, abs=1e-6), "the embedding moves along a line"


def test_first_order_terms_are_those_of_the_weights(points):
    result, rows = activations.first_order_result(
        points, PROBES, seed=0, dtype=torch.float32, device=CPU, progress=lambda done, total: None
    )
    first = next(row for row in result["modules"] if row["name"] == "layers.0.self_attn.q_proj")
    base, last = (load_model(points[at].folder, torch.float32, CPU) for at in (0, -1))
    changes, sizes = [], []
    for one in PROBES:
        ids = torch.tensor([one.prompt_ids + one.completion_ids])
        rows_T = slice(len(one.prompt_ids) - 1, ids.shape[1] - 1)
        with torch.no_grad():
            x0, x1 = (m.model.layers[0].input_layernorm(m.model.embed_tokens(ids))[0, rows_T] for m in (base, last))
            w0, w1 = (m.model.layers[0].self_attn.q_proj.weight for m in (base, last))
            changes.append((x1 @ w1.T - x0 @ w0.T).norm(dim=1))
            sizes.append(((x1 - x0) @ w0.T).norm(dim=1))
    change, size = torch.cat(changes), torch.cat(sizes)
    assert first["output_change"] == pytest.approx(float(change.mean()), rel=1e-3)
    assert first["w0_dx"]["median"] == pytest.approx(float(np.median((size / change).numpy())), rel=1e-2)
    assert result["medians"]["dw_dx"] < result["medians"]["w0_dx"]
    assert "W0 dx" in result["statement"]
    assert len(rows["name"]) == len(result["modules"])


# ---- through the job --------------------------------------------------------------------------------------------

GIVEN = [{"prompt_ids": list(one.prompt_ids), "completion_ids": list(one.completion_ids)} for one in PROBES]


@pytest.fixture(scope="module")
def service(tmp_path_factory, points):
    service = Service(tmp_path_factory.mktemp("job"))
    folder = service.settings.models_dir / "mine"
    folder.mkdir()
    for point in points:
        shutil.copytree(point.folder, folder / point.folder.name)
    return service


def asked(service, *compute, **changes):
    submitted = {"kind": "analysis", "checkpoints": "mine", "compute": list(compute), "seed": 4} | changes
    recipe = load_recipe(resolved(parse_recipe(submitted)))
    with service.db.write() as session:
        run = runs.create(
            session, recipe=resolved(recipe), submitted=submitted, recipe_hash=recipe_hash(recipe),
            family_hash=family_hash(recipe), model=None, name="test", kind="analysis",
        )  # fmt: skip
    return service.attempt(run.id)


def test_every_analysis_of_outputs_is_stored_with_its_tables_and_figures(service):
    probe = {"token_ids": GIVEN}
    names = ["token_linearity", "logit_linearity", "activation_linearity", "first_order"]
    context = asked(service, *({"name": name, "probe": probe} for name in names))
    assert run_analysis(context).state == "succeeded"
    with service.db.read() as session:
        rows = {row.name: row for row in analyses.list_for_run(session, context.run_id)}
    assert list(rows) == names
    for name, row in rows.items():
        folder = service.settings.analysis_dir(row.id)
        assert sorted(path.name for path in folder.iterdir()) == sorted([*row.figures, *row.result["tables"]]), name
        stored = parquet.read_table(folder / "probes.parquet").to_pylist()
        assert [tuple(one["completion_ids"]) for one in stored] == [one.completion_ids for one in PROBES]
    assert "variance-and-r2.json" in rows["token_linearity"].figures
    assert "layers.png" in rows["activation_linearity"].figures
    assert "first-order.svg" in rows["first_order"].figures
    folder = service.settings.analysis_dir(rows["token_linearity"].id)
    table = parquet.read_table(folder / "tokens.parquet").to_pylist()
    assert len(table) == 11
    assert len(table[0]["values"]) == len(STEPS)


def test_probes_are_sampled_from_the_first_checkpoint_and_the_same_every_time(service):
    probe = {"suite": "reasoning_gym:chain_sum", "items": 2, "n": 2, "max_completion_length": 5}
    found = []
    for _ in range(2):
        context = asked(service, {"name": "first_order", "probe": probe})
        assert run_analysis(context).state == "succeeded"
        with service.db.read() as session:
            (row,) = analyses.list_for_run(session, context.run_id)
        found.append(parquet.read_table(service.settings.analysis_dir(row.id) / "probes.parquet").to_pylist())
    assert found[0] == found[1]
    assert len({one["item"] for one in found[0]}) == 2
    assert [one["sample"] for one in found[0]] == [0, 1, 0, 1]


def cut_short(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])


def one_tensor_less(folder):
    weights = load_file(str(folder / "model.safetensors"))
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (cut_short, "damaged_checkpoint"),
        (one_tensor_less, "different_tensors"),
        (lambda folder: make_llama(head_dim=4).save_pretrained(folder), "different_tensors"),
    ],
)
@pytest.mark.parametrize("name", ["token_linearity", "activation_linearity", "first_order"])
def test_a_checkpoint_that_is_not_like_the_others_is_refused_by_name(service, name, change, code):
    folder = service.settings.models_dir / "odd"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(service.settings.models_dir / "mine", folder)
    change(folder / "step-50")
    with pytest.raises(UserError, match="step-50") as caught:
        run_analysis(asked(service, {"name": name, "probe": {"token_ids": GIVEN}}, checkpoints="odd"))
    assert caught.value.code == code


def test_checkpoints_that_all_lack_a_tensor_are_refused_and_never_filled_at_random(service):
    folder = service.settings.models_dir / "lacking"
    shutil.copytree(service.settings.models_dir / "mine", folder)
    for point in folder.iterdir():
        one_tensor_less(point)
    sampled = {"suite": "reasoning_gym:chain_sum", "items": 1, "n": 1, "max_completion_length": 2}
    for probe in (sampled, {"token_ids": GIVEN}):
        with pytest.raises(
            UserError, match=r"step-0 do not fill .* are missing: model\.layers\.1\.mlp\.up_proj"
        ) as caught:
            run_analysis(asked(service, {"name": "token_linearity", "probe": probe}, checkpoints="lacking"))
        assert caught.value.code == "damaged_checkpoint"


def test_probes_of_another_vocabulary_are_refused_by_folder(service):
    probe = {"token_ids": [{"prompt_ids": [1], "completion_ids": [10**6]}]}
    with pytest.raises(UserError, match="step-0") as caught:
        run_analysis(asked(service, {"name": "token_linearity", "probe": probe}))
    assert caught.value.code == "different_tokens"
