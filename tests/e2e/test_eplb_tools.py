"""`switchyard eplb plan` and `simulate` on recorded routing: printed output, the --output placement, the --svg picture, and
errors for invalid files and sizes. The resulting balancedness must improve, and must not exceed the bound for any
placement."""
import json
import pathlib
import re
import struct
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

import server

TRACES = pathlib.Path(__file__).parents[1] / "data/eplb/traces.safetensors"
SIZE = ["--tensor", "shift", "--ranks", "32", "--nodes", "4", "--groups", "8", "--physical", "288"]
ALGORITHMS = ["auto", "deepseek", "deepseek_hierarchical", "elasticity_aware", "yard"]


def eplb(*arguments):
    return subprocess.run([server.PROGRAM, "eplb", *map(str, arguments)], capture_output=True, text=True, timeout=300)


def lines(*arguments):
    done = eplb(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # progress output appears only on terminals
    return done.stdout.splitlines()


def refusal(*arguments):
    done = eplb(*arguments)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    return done.stderr.strip()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_plan_prints_the_placement_and_how_even_it_is(algorithm):
    printed = lines("plan", TRACES, *SIZE, "--algorithm", algorithm)
    assert printed[0].startswith(f"200 steps, 1 layers, 256 experts in 288 slots of 32 ranks on 4 nodes: {algorithm} took ")
    before, after = map(float, re.fullmatch(r" +0 +([\d.]+) +([\d.]+)", printed[3]).groups())
    assert 0 < before < after <= 1
    ranks = [re.fullmatch(r"  rank (\d+): ([\d ]+)", line) for line in printed if line.startswith("  rank ")]
    assert [int(m[1]) for m in ranks] == list(range(32))
    experts = [[int(e) for e in m[2].split()] for m in ranks]
    assert {len(held) for held in experts} == {9}
    assert {e for held in experts for e in held} == set(range(256))


def test_plan_leaves_a_file_that_it_and_a_server_start_from(tmp_path):
    file = tmp_path / "placement.json"
    printed = lines("plan", TRACES, *SIZE, "--output", file)
    assert printed[-1] == f"placement written to {file}"
    assert not any(line.startswith("layer 0") for line in printed)
    (row,) = json.loads(file.read_text())["physical_to_logical_map"]
    assert len(row) == 288 and set(row) == set(range(256))
    # Unchanged load: no move gains more than it costs, so the placement stays.
    again = tmp_path / "again.json"
    printed = lines("plan", TRACES, *SIZE, "--previous", file, "--output", again)
    assert json.loads(again.read_text()) == json.loads(file.read_text())
    assert " 0 experts, 0.0 GiB, of them 0.0 GiB from other nodes" in printed[-2]


def test_simulate_prints_windows_and_draws_them(tmp_path):
    picture = tmp_path / "shift.svg"
    printed = lines("simulate", TRACES, *SIZE, "--every", "10", "--svg", picture)
    rows = [line.split() for line in printed[3:-1]]
    assert [row[0] for row in rows] == ["50-99", "100-149", "150-199", "all"]
    assert [int(row[3]) for row in rows] == [5, 5, 5, 15]
    assert int(rows[-1][4]) == sum(int(row[4]) for row in rows[:-1]) > 0
    for row in rows:
        assert float(row[1]) < float(row[2]) <= 1
    root = ElementTree.parse(picture).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("before: the trivial placement" in text for text in texts)
    assert any(f"{rows[-1][1]} before (grey), {rows[-1][2]} after (blue)" in text for text in texts)
    curves = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert [len(curve.attrib["points"].split()) for curve in curves] == [150, 150]


def test_ranks_may_have_their_own_slots_and_speeds(tmp_path):
    flags = ["--tensor", "steady", "--ranks", "2", "--slots", "64,192", "--rank-costs", "1:10,8:200", "--sources", "1",
             "--dispatch", "static"]
    file = tmp_path / "placement.json"
    printed = lines("plan", TRACES, *flags, "--output", file)
    before, after = map(float, re.fullmatch(r"time of the slowest rank in a step, all layers: ([\d.e+]+) before, ([\d.e+]+) after",
                                            printed[-2]).groups())
    assert after < before
    (row,) = json.loads(file.read_text())["physical_to_logical_map"]
    assert sorted(row) == list(range(256))
    printed = lines("simulate", TRACES, *flags, "--every", "50")
    before, after = map(float, re.findall(r"[\d.e+]+(?= before| after)", printed[-1]))
    assert after < before
    assert "--slots 64;192: want a number" in refusal(
        "plan", TRACES, "--tensor", "steady", "--ranks", "2", "--slots", "64;192")
    assert "the ranks have 255 expert slots together; want 256" in refusal(
        "plan", TRACES, "--tensor", "steady", "--ranks", "2", "--slots", "63,192", "--physical", "256")
    assert "want auto or yard" in refusal("plan", TRACES, *flags, "--algorithm", "deepseek")
    assert "--dispatch lp divides rows over equal ranks" in refusal("plan", TRACES, *flags[:-1], "lp")


def test_counts_may_be_text(tmp_path):
    file = tmp_path / "counts.json"
    file.write_text(json.dumps({"logical_count": [[9, 1, 1, 1, 1, 1], [0] * 6]}))
    printed = lines("plan", file, "--ranks", "2", "--physical", "8")
    assert printed[3].split()[1:3] == ["0.875", "1.000"]  # before: 8 of 14 tokens on rank 1; after: 7 on each
    assert printed[4].split()[1:3] == ["-", "-"]  # a layer without experts


def test_errors_name_the_cause(tmp_path):
    assert "there is no eplb move; the nearest is eplb plan; want plan or simulate" in refusal("move")
    assert "--ranks is required" in refusal("plan", TRACES)
    assert f"{TRACES}: no array named logical_count; the file has drift, shift, steady" in refusal(
        "plan", TRACES, "--ranks", "8")
    size = ["--tensor", "steady", "--ranks"]
    assert "6 ranks are not divisible by 4 nodes" in refusal("plan", TRACES, *size, "6", "--nodes", "4")
    assert "256 experts do not fit" in refusal("plan", TRACES, *size, "8", "--physical", "200")
    assert "--eplb-algorithm best: want auto, deepseek" in refusal("plan", TRACES, *size, "8", "--algorithm", "best")
    assert "200 recorded steps; a window of 200 leaves none to evaluate" in refusal(
        "simulate", TRACES, *size, "8", "--window", "200")
    assert "--svg /no/such/dir/a.svg: cannot be written" in refusal("simulate", TRACES, *size, "8", "--svg", "/no/such/dir/a.svg")
    other = tmp_path / "map.json"
    other.write_text('{"physical_to_logical_map": [[0, 1]]}')
    assert f"--previous {other}: want a placement of 1 layers and 256 slots" in refusal(
        "plan", TRACES, *size, "8", "--previous", other)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(TRACES.read_bytes()[:-1])
    assert re.search(r'tensor "shift": .*truncated', refusal("plan", cut, *size, "8"))
    empty = tmp_path / "empty.safetensors"
    header = b'{"logical_count":{"dtype":"I32","shape":[1,1,2],"data_offsets":[0,8]}}'
    empty.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert "all token counts are zero" in eplb("plan", empty, "--ranks", "2").stderr
    assert "/no/such/file: no such file" in refusal("plan", "/no/such/file", "--ranks", "2")


@pytest.mark.parametrize("which", [[], ["plan"], ["simulate"]])
def test_help(which):
    printed = "\n".join(lines(*which, "--help"))
    assert "switchyard eplb" in printed
    if which:
        assert all(flag in printed for flag in ["--ranks", "--physical", "--nodes", "--algorithm", "--dispatch"])


MODEL = server.FIXTURES / "qwen3_moe"  # 3 layers of 16 experts
LAYOUT = ["--tp", "2", "--ep", "2", "--moe-a2a-backend", "deepep", "--ep-num-redundant-experts", "4", "--cpu-threads-per-rank", "1"]


def generate(location):
    return subprocess.run([server.PROGRAM, "generate", "--model-path", MODEL, "--prompt", "The router", "--max-new-tokens", "8",
                           "--ignore-eos", *LAYOUT, "--init-expert-location", str(location)],
                          capture_output=True, text=True, timeout=120)


def test_a_model_starts_from_a_plan_and_from_a_recording(tmp_path):
    trivial = generate("trivial")
    assert trivial.returncode == 0, trivial.stderr
    counts = tmp_path / "counts.json"
    counts.write_text(json.dumps({"logical_count": [[100 // (1 + (e + 5 * layer) % 16) for e in range(16)] for layer in range(3)]}))
    placement = tmp_path / "placement.json"
    lines("plan", counts, "--ranks", "2", "--physical", "20", "--output", placement)
    for location in (counts, placement):
        moved = generate(location)
        assert moved.returncode == 0, moved.stderr
        assert moved.stdout == trivial.stdout  # bit-identical for every placement


def test_a_model_does_not_start_from_a_corrupt_file(tmp_path):
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(TRACES.read_bytes()[:-1])
    done = generate(cut)
    assert done.returncode == 2 and done.stdout == ""
    assert f"--init-expert-location {cut}" in done.stderr and "truncated" in done.stderr
    missing = tmp_path / "map.json"
    missing.write_text(json.dumps({"physical_to_logical_map": [[0] * 20]}))
    done = generate(missing)
    assert done.returncode == 2 and "layer 0: logical expert 1 has no physical expert" in done.stderr
