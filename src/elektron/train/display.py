"""A run on the terminal: a progress bar where there is one to draw on, a line a record where there is not."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from elektron.train.metrics import Record


class Display:
    """Shows records as they come."""

    def __init__(self, total_steps: int, step: int, is_quiet: bool = False) -> None:
        self._console = Console(highlight=False, soft_wrap=True, quiet=is_quiet)
        self._total, self._began = total_steps, step
        self._auc = ""
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=is_quiet or not self._console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=total_steps, completed=step, status="")

    def __enter__(self) -> "Display":
        if self._began == self._total:
            self._console.print(f"all {self._total:,} steps are done already")
        elif self._began:
            self._console.print(f"goes on from step {self._began:,} of {self._total:,}")
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def advance(self, step: int) -> None:
        self._progress.update(self._bar, completed=step)

    def show(self, record: Record) -> None:
        if record["kind"] == "run":
            self._console.print(
                f"{next(iter(record['networks'].values())):,} parameters to keep, {record['tokens']:,} tokens to read "
                f"({record['epochs']:.2g} times the corpus) on {record['clock']['device']}; "
                f"word frequencies alone would name tokens with a loss of {record['unigram_loss']:.3f}"
            )
        elif record["kind"] == "train":
            self._progress.update(self._bar, status=f"{_losses(record)}{self._auc}  {_speed(record)}")
            if not self._console.is_terminal:
                self._console.print(f"step {record['step']:,}/{self._total:,}  {_losses(record)}  {_speed(record)}")
        elif record["kind"] == "held":
            self._auc = f"  AUC {record['detection_auc']:.3f}" if "detection_auc" in record else ""
            recall = f"  recall {record['discriminator_recall']:.2f}" if "discriminator_recall" in record else ""
            replaced = f"  replaced {record['replaced_rate']:.1%}" if "replaced_rate" in record else ""
            self._console.print(
                f"[bold]held out at step {record['step']:,}[/]  {_losses(record)}{self._auc}{recall}{replaced}"
            )
        elif record["kind"] == "health":
            self._console.print(f"[yellow]at step {record['step']:,}: {record['message']}[/]")


def _losses(record: Record) -> str:
    names = [name for name in record if name.endswith("_loss")]
    return "  ".join(f"{name.removesuffix('_loss')} {record[name]:.4g}" for name in names)


def _speed(record: Record) -> str:
    clock = record["clock"]
    mfu = f"  MFU {clock['mfu']:.1%}" if "mfu" in clock else ""
    return f"{clock['tokens_per_second']:,.0f} tokens/s{mfu}"
