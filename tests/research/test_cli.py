"""The command line: what composes, and how a mistake is told."""

from __future__ import annotations

import os
import signal
import time

import pytest

from research.cli import compose_config, options, run_command
from research.errors import ResearchError


def call(words, capsys, name="compare"):
    seen = []
    code = run_command(name, seen.append, summary="Summary.", examples=("a=b",), argv=words)
    return code, capsys.readouterr(), seen


def test_the_grammar_of_the_readme_composes():
    config = compose_config(
        "compare",
        [
            "trace=mooncake_conversation",
            "cluster=2p2d",
            "policies=[round_robin,ppd,{name: deflect, alpha: 1.3}]",
            "load=[0.8,1.0,1.2]",
            "slo=tight",
            "out=somewhere",
        ],
    )
    assert config.trace.name == "mooncake_conversation"
    assert config.cluster.name == "2p2d"
    assert config.policies[2] == {"name": "deflect", "alpha": 1.3}
    assert list(config.load) == [0.8, 1.0, 1.2]
    assert config.slo.tpot_s == 0.025


def test_evaluate_takes_a_policy_and_its_parameters():
    config = compose_config("evaluate", ["trace=azure_conv", "cluster=1p3d", "policy=deflect", "policy.alpha=1.3"])
    assert (config.policy.name, config.policy.alpha) == ("deflect", 1.3)
    config = compose_config("evaluate", ["policy=custom", "policy.target=my_lab.router:MyPolicy", "policy.params.x=2"])
    assert (config.policy.target, config.policy.params.x) == ("my_lab.router:MyPolicy", 2)


@pytest.mark.parametrize("layout", ["3p5d", "16p16d", "colocated4", "split2", "my/own.yaml"])
def test_a_cluster_needs_no_file_of_its_own(layout):
    assert compose_config("compare", [f"cluster={layout}"]).cluster.name == layout


def test_a_cluster_and_its_parts_go_together():
    cluster = compose_config("compare", ["cluster=1p1d", "cluster.decode_budget_tokens=512"]).cluster
    assert (cluster.name, cluster.decode_budget_tokens, cluster.prefill_budget_tokens) == ("1p1d", 512, 8192)


def test_paths_with_spaces_and_quotes_survive():
    assert compose_config("compare", ["cluster='it\\'s mine/c.yaml'"]).cluster.name == "it's mine/c.yaml"
    assert compose_config("compare", ["trace.path='a b.csv'", "trace.format=azure"]).trace.path == "a b.csv"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["slo=tigth"], ["unknown slo 'tigth'", "did you mean 'tight'", "loose, tight"]),
        (["trace=azure_con"], ["unknown trace", "azure_conv"]),
        (["hardware=llama"], ["unknown hardware", "expected one of"]),
        (["polices=[guard]"], ["unknown setting 'polices'", "did you mean 'policies'"]),
        (["slo.tpot=0.02"], ["unknown setting 'slo.tpot'", "tpot_s"]),
        (["windws=4"], ["did you mean 'windows'"]),
        (["cluster=2d2p"], ["cluster=2d2p", "<n>p<m>d"]),
        (["cluster=[1,2]"], ["cluster: expected one of"]),
        (["nonsense"], ["'nonsense': expected key=value"]),
        (["policies=[guard"], ["cannot read 'policies=[guard'"]),
        (["+new=1"], ["expected a plain key=value"]),
        (["load=0.8,1.0"], ["a list is written key=[a,b]"]),
        (["-m", "load=1"], ["unknown option '-m'", "policies=[a,b]"]),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(words, parts, capsys):
    code, output, seen = call(words, capsys)
    assert code == 2
    assert seen == []
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    for part in parts:
        assert part in output.err


def test_an_unknown_policy_of_evaluate_names_the_nearest(capsys):
    code, output, _ = call(["policy=gard"], capsys, "evaluate")
    assert code == 2
    assert "did you mean 'guard'" in output.err


def test_a_parameter_that_a_policy_does_not_have_is_told(capsys):
    code, output, _ = call(["policy=deflect", "policy.alfa=1"], capsys, "evaluate")
    assert code == 2
    assert "unknown setting 'policy.alfa' (did you mean 'policy.alpha'?)" in output.err


def test_a_required_value_left_out_is_told(capsys):
    code, output, _ = call([], capsys, "report")
    assert code == 2
    assert "missing value: give path=VALUE" in output.err


def test_errors_of_the_run_are_one_line_too(capsys):
    def run(config):
        raise ResearchError("the folder is full")

    assert run_command("compare", run, summary="", examples=(), argv=[]) == 2
    assert capsys.readouterr().err == "error: the folder is full\n"


def test_our_own_faults_keep_their_traceback():
    def run(config):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run_command("compare", run, summary="", examples=(), argv=[])


def test_an_interrupt_says_that_finished_runs_are_kept(capsys):
    def run(config):
        raise KeyboardInterrupt

    assert run_command("compare", run, summary="", examples=(), argv=[]) == 130
    assert "finished runs are kept" in capsys.readouterr().err


def test_sigterm_ends_a_command_as_ctrl_c_does(capsys):
    before = signal.getsignal(signal.SIGTERM)

    def run(config):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    assert run_command("compare", run, summary="", examples=(), argv=[]) == 143
    assert "finished runs are kept" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before


def test_help_shows_purpose_examples_groups_and_settings(capsys):
    code, output, seen = call(["--help"], capsys)
    assert code == 0
    assert seen == []
    for part in ("Summary.", "python -m research.compare a=b", "<n>p<m>d", "loose | tight", "windows=8", "--cfg"):
        assert part in output.out


def test_cfg_shows_the_configuration_instead_of_running(capsys):
    code, output, seen = call(["--cfg", "job", "windows=3"], capsys)
    assert code == 0
    assert seen == []
    assert "windows: 3" in output.out


def test_every_value_of_every_group_composes():
    for group in ("trace", "hardware", "slo", "view"):
        assert options(group)
        for value in options(group):
            compose_config("compare", [f"{group}={value}"])
    for policy in options("policy"):
        extra = ["policy.target=a.b:C"] if policy == "custom" else []
        compose_config("evaluate", [f"policy={policy}", *extra])
