"""`switchyard train` with ranks as processes: on one host, on several, of a launcher; and after the death of a rank."""
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

import test_train
from server import MPIRUN, PROGRAM, free_port

STEPS = 12
folder = test_train.folder  # a fixture: model, tokenizer and data
# Pipeline stages, tensor and expert parallelism: messages of all kinds. Four ranks.
FLAGS = ["--tp", 2, "--ep", 2, "--pp", 2, "--dtype", "float32", "--save-every", 5, "--keep", 0, "--dist-timeout", 30]


def command(folder, output, *flags):
    return [PROGRAM, *map(str, test_train.command(folder, output, STEPS, *FLAGS, *flags))]


def hosts(address, count=2):
    return [["--nnodes", count, "--node-rank", node, "--dist-init-addr", address] for node in range(count)]


def start(words, env=()):
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **dict(env)})


def endings(processes):
    """The exit code and stderr of each process."""
    try:
        said = [process.communicate(timeout=60)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, text) for process, text in zip(processes, said)]


def run_all(commands, env=()):
    """Runs the commands at the same time. Returns the exit code and stderr of each."""
    return endings([start(words, env[i] if env else {}) for i, words in enumerate(commands)])


def finishes(commands, env=()):
    ended = run_all(commands, env)
    assert [code for code, _ in ended] == [0] * len(commands), "\n".join(text for _, text in ended)
    return [text for _, text in ended]


@pytest.fixture(scope="module")
def threads(folder):
    """The run with ranks as threads of one process."""
    output = folder / "threads"
    finishes([command(folder, output)])
    return output


def same(output, wanted):
    """Equal logs and checkpoints, but for the measured times."""
    logs = [[{**line, "seconds": 0, "tokens_per_second": 0} for line in test_train.steps_of(run)]
            for run in (output, wanted)]
    assert logs[0] == logs[1]
    assert [line["step"] for line in logs[0]] == list(range(1, STEPS + 1))
    for checkpoint in ("checkpoint-000005", "checkpoint-000010", "checkpoint-000012", "final"):
        names = sorted(path.name for path in (wanted / checkpoint).iterdir())
        assert names == sorted(path.name for path in (output / checkpoint).iterdir())
        for name in names:
            found, want = ((run / checkpoint / name).read_bytes() for run in (output, wanted))
            if name == "trainer.json":
                found, want = ({**json.loads(text), "seconds": 0} for text in (found, want))
            assert found == want, f"{checkpoint}/{name}"
    assert not list(output.glob(".checkpoint*"))


def test_hosts_train_as_one_process_does(folder, threads):
    output, secret = folder / "hosts", folder / "secret"
    secret.write_text("a secret of two hosts\n")
    secret.chmod(0o600)
    leader, follower = finishes([command(folder, output, *host, "--dist-secret-file", secret, "--async-save",
                                         "--zero-stage", 1, "--recompute", "layer")
                                 for host in hosts(f"127.0.0.1:{free_port()}")])
    same(output, threads)
    assert f"step {STEPS}/{STEPS}" in leader and "one epoch" in leader and "without --zero-stage 1" in leader
    assert "step 1/" not in follower and "one epoch" not in follower


@pytest.mark.parametrize("nodes, fault, how", [
    (1, "stop", "s and was killed (--rank-stall-timeout)"),
    (2, "kill", "was killed by signal 9 (SIGKILL)")])
def test_a_dead_rank_is_replaced(folder, threads, tmp_path, nodes, fault, how):
    """The run goes on from the last checkpoint, and its end is that of an undisturbed run."""
    output, faults = tmp_path / "out", tmp_path / "faults"
    faults.mkdir()
    (faults / "3.step8").write_text(fault)  # a rank of the last node
    flags = hosts(f"127.0.0.1:{free_port()}", nodes) if nodes > 1 else [[]]
    said = finishes([command(folder, output, *host, "--max-restarts", 1, "--rank-stall-timeout", 0.5)
                     for host in flags],
                    [{"SWITCHYARD_TEST_FAULTS": str(faults)}] * nodes)
    assert not list(faults.iterdir())
    assert how + "; restart 1 of 1 (--max-restarts)" in said[-1]
    assert "rank 3" in said[0] and "after step 5" in said[0]
    same(output, threads)


@pytest.fixture
def held(folder, tmp_path):
    """Two hosts, which wait at step 8: the commands, the processes and the file whose removal lets them go on."""
    hold = tmp_path / "faults" / "3.step8"
    hold.parent.mkdir()
    hold.write_text("hold")
    words = [command(folder, tmp_path / "out", *host, "--max-restarts", 1)
             for host in hosts(f"127.0.0.1:{free_port()}")]
    processes = [start(host, {"SWITCHYARD_TEST_FAULTS": str(hold.parent)}) for host in words]
    log = tmp_path / "out" / "log.jsonl"
    end = time.time() + 30
    while not (log.exists() and log.read_text().count("\n") == 8):
        assert time.time() < end, "step 8 was not reached"
        time.sleep(0.01)
    yield words, processes, hold
    for process in processes:
        process.kill()


def test_a_lost_host_is_replaced(held, threads, tmp_path):
    words, processes, hold = held
    processes[1].kill()
    hold.unlink()
    (code, said), (other_code, other) = endings([processes[0], start(words[1])])
    assert code == 0 and other_code == 0, said + other
    assert "restart 1 of 1" in said and "node 1 (127.0.0.1)" in said and "after step 5" in said
    same(tmp_path / "out", threads)


def test_a_signal_to_one_host_ends_all_of_them(held, threads, tmp_path):
    """All save a checkpoint, from which the same commands continue."""
    words, processes, hold = held
    processes[1].send_signal(signal.SIGTERM)
    assert any("stopping after this step" in line for line in processes[1].stderr)
    time.sleep(0.3)  # until its ranks have the message
    hold.unlink()
    (code, said), (other_code, other) = endings(processes)
    assert code == 0 and other_code == 0, said + other
    assert "stopped after step" in said and "the same command continues" in said
    assert len(test_train.steps_of(tmp_path / "out")) < STEPS
    finishes(words)
    same(tmp_path / "out", threads)


def test_too_many_deaths_end_the_run(folder, tmp_path):
    (tmp_path / "2.step6").write_text("always throw")
    [(code, said)] = run_all([command(folder, tmp_path / "out", "--max-restarts", 1)],
                             [{"SWITCHYARD_TEST_FAULTS": str(tmp_path)}])
    assert code == 1
    assert "rank 2 failed: std::bad_alloc" in said and "was restarted 1 times" in said


def test_wrong_input_of_one_host_ends_all_without_a_restart(folder, tmp_path):
    (tmp_path / "other.txt").write_text("other text " * 50)
    first, second = hosts(f"127.0.0.1:{free_port()}")
    ended = run_all([command(folder, tmp_path / "out", *first, "--max-restarts", 3),
                     command(folder, tmp_path / "out", *second, "--max-restarts", 3, "--data", tmp_path / "other.txt")])
    for code, said in ended:
        assert code == 2 and "--data: rank 2 has read other documents than rank 0" in said, said
        assert "restart 1" not in said
    ended = run_all([command(folder, tmp_path / "out", *first),
                     command(folder, tmp_path / "out", *second, "--learning-rate", 0.5)])
    for code, said in ended:
        assert code == 2 and "--learning-rate is 0.01 on node 0, but 0.5" in said, said


def test_a_missing_host_is_named(folder, tmp_path):
    first, _ = hosts(f"127.0.0.1:{free_port()}")
    [(code, said)] = run_all([command(folder, tmp_path / "out", *first, "--dist-timeout", 1)])
    assert code == 1 and "node 0 waited 1 s" in said and "for node 1 of 2" in said


def test_torchruns_processes_are_ranks(folder, threads):
    output, port = folder / "torchrun", free_port()
    env = [{"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none"} for rank in range(4)]
    finishes([command(folder, output, "--schedule", "zero-bubble")] * 4, env)
    same(output, threads)


@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun")
def test_ranks_of_mpirun(folder, threads):
    output = folder / "mpi"
    done = subprocess.run([*MPIRUN, "-np", "4", *command(folder, output, "--zero-stage", "1")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(output / "final")
    same(output, threads)
