"""The house itself: imports go one way, every shipped config and every command of the README parses."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from elektron.cli import VERBS
from elektron.config import overlay
from elektron.data.files import write_json
from elektron.interop.huggingface import their_config
from elektron.model.encoder import EncoderConfig
from elektron.objectives.objective import ObjectiveConfig, generator_shape
from elektron.presets import PRESETS
from elektron.verbs import pretrain, runs

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "elektron"
LAYERS = [
    {"kernels"},
    {"data"},
    {"model"},
    {"objectives", "tasks"},
    {"train", "score"},
    {"interop", "page"},
    {"verbs"},
    {"cli"},
]
"""Each may import itself and what stands above it."""
ANYWHERE = {"config": set(), "presets": set(), "__init__": {"interop"}, "__main__": {"cli"}}


def room(module: str) -> str:
    return module.split(".")[1] if module.count(".") else "__init__"


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names if node.module == "elektron")]
            found |= {name for name in names if name.startswith("elektron")}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("elektron")}
    return found


def test_imports_go_one_way():
    for path in SOURCE.rglob("*.py"):
        here = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        rooms = {room(name) for name in imports(path)} - {here, "__init__", "__version__"}
        if here in ANYWHERE:
            assert rooms <= ANYWHERE[here], path
        else:
            level = next(i for i, layer in enumerate(LAYERS) if here in layer)
            allowed = set().union(*LAYERS[:level])
            if here in ("verbs", "cli"):
                allowed |= {"config", "presets"}
            assert rooms <= allowed, f"{path} imports {rooms - allowed}"


def test_help_is_instant():
    """Neither torch nor the command line's library is loaded for it."""
    script = (
        "import sys; sys.argv = ['elektron', '--help']; import elektron.cli; elektron.cli.main(); print(*sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    loaded = set(said.splitlines()[-1].split())
    assert not loaded & {"torch", "numpy", "tyro", "rich", "tokenizers", "pyarrow"}
    for verb in VERBS:
        assert verb in said


def test_importing_elektron_loads_nothing():
    script = "import sys, elektron; assert not {'torch', 'numpy'} & set(sys.modules); elektron.load_discriminator"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb):
    said = subprocess.run(
        [sys.executable, "-m", "elektron", verb, "--help"], capture_output=True, text=True, check=True
    )
    assert f"usage: elektron {verb}" in said.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda path: path.name)
def test_every_shipped_config_parses(path, tmp_path):
    words = [str(path)]
    if "frozen" in path.read_text():
        small = generator_shape(EncoderConfig(), ObjectiveConfig())
        write_json(tmp_path / "config.json", their_config(small, 30522, "generator", 0))
        words += ["--init-generator", str(tmp_path)]
    assert runs.check(pretrain.configure(words, "elektron pretrain", "")).train.phases


@pytest.mark.parametrize(
    "names", [(name,) for name in PRESETS] + [("small", "paper"), ("base", "paper"), ("large", "paper")]
)
def test_presets_apply_in_full(names):
    config = runs.with_presets(runs.RunConfig(), names)
    for name in names:
        assert overlay(config, PRESETS[name], name) == config


def commands_of(paper: str) -> list[str]:
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", (ROOT / paper).read_text(), re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


@pytest.mark.parametrize(("paper", "first"), [("README.md", "make quickstart"), ("docs/guide.md", "elektron prepare")])
def test_the_papers_commands_exist(paper, first):
    """elektron's flags parse, make's targets and every file named are there."""
    commands, ours = commands_of(paper), []
    assert any(command.startswith(first) for command in commands)
    for command in commands:
        program, *arguments = shlex.split(command.split("|")[-1].split(" > ")[0])
        if program == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
            assert set(arguments) <= set(targets), command
        elif program == "elektron":
            assert arguments[0] in VERBS, command
            for word in arguments:
                if word.endswith(".toml"):
                    assert (ROOT / word).exists() or word.startswith("runs/"), command
            ours.append([word for word in arguments if not word.endswith(".toml")])
        else:
            assert program in ("pip", "git", "cd", "python", "curl", "export", "hf"), command
    parse(ours)


def parse(commands: list[list[str]]) -> None:
    """The verbs take these words: nothing is run, and all in one process, which takes seconds to begin."""
    script = (
        "from importlib import import_module; import elektron.config as config\n"
        "import elektron.verbs.pretrain as pretrain\n"
        "class Parsed(BaseException): pass\n"
        "real = config.parse\n"
        "def parse(*a, **k):\n    real(*a, **k)\n    raise Parsed\n"
        "pretrain.runs.settings_of = lambda *folders: {}\n"
        "pretrain.branches.branched = lambda choice: pretrain.RunConfig(run=choice.run)\n"
        f"for verb, *words in {commands!r}:\n"
        "    module = import_module(f'elektron.verbs.{verb}')\n"
        "    module.parse = pretrain.parse = parse\n"
        "    try: module.main(words)\n"
        "    except Parsed: continue\n"
        "    except BaseException as error: raise SystemExit(f'{verb} {words}: {error!r}')\n"
        "    raise SystemExit(f'{verb} {words}: nothing was parsed')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_the_version_is_one():
    import elektron

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == elektron.__version__


def test_constraints_pin_every_dependency():
    pinned = {
        line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for group in project["optional-dependencies"].values() for d in group)]
    names = {re.split(r"[\[<>=]", name)[0].lower().replace("_", "-") for name in wanted} - {"elektron"}
    assert names <= pinned, names - pinned


def test_no_link_between_the_papers_is_dead():
    papers = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(paper, link) for paper in papers for link in re.findall(r"\]\(([^)#]+)", paper.read_text())]
    assert len(links) > 10
    dead = [
        f"{paper.name}: {link}" for paper, link in links if "://" not in link and not (paper.parent / link).exists()
    ]
    assert not dead


def test_every_promise_has_its_test():
    """The tests that docs/reliability.md names are there, and each of its rows names one."""
    rows = [line for line in (ROOT / "docs" / "reliability.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for path, name in named:
            functions = {node.name for node in ast.parse((ROOT / path).read_text()).body if hasattr(node, "name")}
            assert name in functions, f"{path} has no {name}"


def test_the_faults_are_all_promised():
    """No test of a fault is without its promise."""
    promised = set(re.findall(r"::(\w+)`", (ROOT / "docs" / "reliability.md").read_text()))
    others = {"test_the_bait_is_poisonous", "test_folders_of_links_are_read"}
    for path in (ROOT / "tests" / "faults").glob("test_*.py"):
        functions = {n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)}
        assert {name for name in functions if name.startswith("test_")} <= promised | others, path


def test_ci_s_checksums_are_those_of_the_constraints():
    """`make lock` makes them anew."""
    lines = (ROOT / ".ci" / "requirements.txt").read_text().splitlines()
    hashed = {line.split()[0] for line in lines if re.fullmatch(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}", line)}
    assert len(hashed) == sum(not line.startswith("#") for line in lines)
    pinned = {
        line.lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }
    assert pinned <= hashed, pinned - hashed
