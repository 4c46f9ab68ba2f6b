"""The command line: `elektron VERB ...`. A verb's module is imported only when that verb runs, so --help is instant."""

import errno
import os
import signal
import sys
from importlib import import_module

VERBS = {
    "prepare": "turn text into shards of tokens",
    "pretrain": "train an encoder: from shards, or from text directly",
    "evaluate": "held-out metrics of a run or an exported folder",
    "analyze": "where a discriminator errs, and the geometry of its layers: one HTML page",
    "compare": "several objectives with one budget: a table and a plot",
    "finetune": "teach an encoder a task and tell how well it does",
    "detect": "how likely each word of a text was replaced",
    "page": "a web page to type on that marks words which look replaced",
    "score": "one number for each sentence; minimal pairs; lists of hypotheses",
    "calibrate": "how far the probabilities of detect can be trusted, and mend them",
    "export": "write a run as Hugging Face folders",
    "plan": "parameters, FLOPs, tokens, memory and time of a run, before it is run",
    "bench": "how fast this machine trains: measured, and kept for plan",
    "report": "draw a run's curves and facts as one HTML page",
}
"""One line of help for each; `elektron.verbs.VERB` has the rest."""

USER_ERROR = 2
_ROOM = "make room, and run the same command again: what was whole is still"
_HELP = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _ROOM),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make it writable, or choose another folder"),
}
"""What to do about a disk's trouble."""
TRACEBACK = "ELEKTRON_TRACEBACK"


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return
    verb, *rest = arguments
    if verb == "--version":
        from elektron import __version__

        print(f"elektron {__version__}")
        return
    if verb not in VERBS:
        sys.exit(_complain(f"unknown verb {verb!r}{_nearest(verb)}\n\n{_help()}"))
    try:
        import_module(f"elektron.verbs.{verb}").main(rest)
    except BrokenPipeError:
        os._exit(128 + signal.SIGPIPE)  # whoever read our words has heard enough
    except (ValueError, OSError) as error:
        if os.environ.get(TRACEBACK):
            raise
        sys.exit(_complain(_in_words(error)))
    except KeyboardInterrupt:
        print("elektron: interrupted; what is done is kept, the same command goes on from there", file=sys.stderr)
        sys.exit(130)


def _help() -> str:
    verbs = "\n".join(f"  {verb:<10}{line}" for verb, line in VERBS.items())
    return (
        "usage: elektron VERB [FILE.toml ...] [--flag value ...]\n\n"
        "ELECTRA-style pre-training: a folder of text in, a Hugging Face encoder out.\n\n"
        f"{verbs}\n\n"
        "elektron VERB --help tells the rest. With no flags, `elektron pretrain` trains a tiny model on the\n"
        "documentation that came with your Python, in a few minutes on a laptop."
    )


def _nearest(verb: str) -> str:
    import difflib

    close = difflib.get_close_matches(verb, VERBS, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _in_words(error: Exception) -> str:
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    said = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{said}; {_HELP[error.errno]}" if error.errno in _HELP else said


def _complain(message: str) -> int:
    rank = os.environ.get("RANK", "0")
    print(f"elektron{'' if rank == '0' else f', rank {rank}'}: {message}", file=sys.stderr)
    return USER_ERROR
