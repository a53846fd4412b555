"""`asyncrl.train` and `asyncrl.resume`: a call becomes a recipe and files, which the command line trains."""

import inspect
import re
from collections.abc import Callable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.launch.python.arguments import (
    COUNT,
    FLAG,
    FOLDER_NAME,
    PATH,
    TEXT,
    checked,
    instance,
    is_count,
    refusal,
)
from asyncrl.launch.python.call import (
    DATA,
    CallFiles,
    Data,
    is_as_written,
    recipe_text,
    rows_of,
    set_apart,
    source_of_data,
    verifier_name,
)
from asyncrl.launch.python.program import Program, pause
from asyncrl.launch.python.run import OUTPUT, Run
from asyncrl.recipe import Recipe
from asyncrl.recipe.complaint import nearest_key
from asyncrl.recipe.file import load_recipe, make_absolute, name_in, object_files
from asyncrl.run.folder import read_run_recipe
from asyncrl.run.status import read_status
from asyncrl.system.paths import expanded
from asyncrl.system.places import CALL, RECIPE

Verifier = str | Callable[..., Any]
"""A name as in a recipe, a function `(response, reference) -> bool | float | Verdict | None`, or a class."""
_NOT_IN_A_NAME = re.compile(r"[^\w.-]+")
_MOST_STEM_CHARACTERS = 50


@checked(
    model=(PATH | instance(Run, "a run")).or_none(),
    algorithm=(TEXT | instance(Mapping, "the keys of the section as a mapping")).or_none(),
    steps=COUNT.or_none(),
    name=FOLDER_NAME.or_none(),
    folder=PATH,
    recipe=PATH.or_none(),
    detach=FLAG,
    quiet=FLAG,
)
def train(
    model: str | Path | Run | None = None,
    *,
    data: Data | None = None,
    heldout: Data | int | None = None,
    verifier: Verifier | None = None,
    algorithm: str | Mapping[str, Any] | None = None,
    steps: int | None = None,
    name: str | None = None,
    folder: str | Path = "runs",
    recipe: str | Path | None = None,
    detach: bool = False,
    quiet: bool = False,
    **sections: Any,
) -> Run:
    """Starts a run as `asyncrl train` does, and returns once it has started: all mistakes have been said by
    then.

    `model`: a hub id, a folder, a GGUF file, or a run whose last model is taken. `data`, `heldout`: a path, a
    hub id, a source as `data.train` has it, or rows (mappings, a data set, a data frame); a number of
    `heldout` sets that many rows of `data` apart. `algorithm`: a preset's name, or the section. `steps`:
    trainer.num_steps. `recipe`: a recipe whose keys hold where the call says nothing. `sections`: keys and
    sections of a recipe, such as `stage="sft"`, `rollout={"samples_per_group": 8}`; paths in them are
    relative to the current folder.

    The run is in `folder`/`name`. With a name, the same call resumes it; without one each call is a run of
    its own. Leaving Python stops the run as Ctrl-C does, and so does an interrupt while it starts, unless
    `detach`. Raises InputError with the command line's sentence, and RunFailed.
    """
    _check_sections(sections)
    raw: dict[str, Any] = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in sections.items()
    }
    base = None if recipe is None else expanded(Path(recipe))
    place = _place(folder, name, _stem(model, base))
    files = CallFiles(place / CALL)
    if model is not None:
        _set(raw, "model", "path", str(model.folder if isinstance(model, Run) else model), "model")
    _add_data(raw, data, heldout, files, is_graded=verifier is not None)
    if verifier is not None:
        _set(raw, "verifying", "default", verifier_name(verifier, files), "verifier")
    if algorithm is not None:
        raw["algorithm"] = {"preset": algorithm} if isinstance(algorithm, str) else dict(algorithm)
    if steps is not None:
        _set(raw, "trainer", "num_steps", int(steps), "steps")
    if base is None and "heldout" not in _section(raw, "data"):
        # A recipe must say so; a call of three lines need not.
        _section(raw, "evaluation").setdefault("every_steps", 0)
    make_absolute(raw, Path.cwd(), raw)
    raw = {"name": place.name, "run_folder": str(place), **raw}
    said = files.add("recipe", ".yaml", recipe_text(raw))
    return _start(
        place, files, [str(said)] if base is None else [str(base), f"@{said}"], detach=detach, quiet=quiet
    )


@checked(folder=PATH | instance(Run, "a run"), steps=COUNT.or_none(), detach=FLAG, quiet=FLAG)
def resume(
    folder: str | Path | Run,
    *,
    steps: int | None = None,
    verifier: Callable[..., Any] | None = None,
    detach: bool = False,
    quiet: bool = False,
) -> Run:
    """Continues the run in `folder` where it stopped, as the command line does. `steps` may be raised.

    The verifier that `train` was given is the source in the run folder; it is refused where that was edited,
    and where `verifier` is given and is another one by now. Raises InputError and RunFailed as `train`.
    """
    place = (folder.folder if isinstance(folder, Run) else Path(folder)).absolute()
    recipe = read_run_recipe(place)
    for file in map(Path, object_files(recipe.verifying.model_dump())):
        if file.parent == place / CALL and not (file.is_file() and is_as_written(file)):
            raise InputError(
                f"{file} is not as `asyncrl.train` wrote it. Put it back, or start another run with the "
                f"verifier that you want: rewards of one run are of one verifier."
            )
    files = CallFiles(place / CALL)
    if verifier is not None and (now := verifier_name(verifier, files)) != recipe.verifying.default:
        raise InputError(
            f"{place} was graded by {recipe.verifying.default}, and the verifier is another one now "
            f"({now}). Leave it out to resume with the first one, or start another run."
        )
    words = [str(place / RECIPE)] + ([] if steps is None else [f"trainer.num_steps={int(steps)}"])
    return _start(place, files, words, detach=detach, quiet=quiet)


def _start(place: Path, files: CallFiles, words: list[str], *, detach: bool, quiet: bool) -> Run:
    """Runs `asyncrl train WORDS...` until the run has begun. What is refused leaves nothing."""
    is_new, has_output = not place.exists(), (files.folder / OUTPUT).exists()
    bytecode = files.folder / "__pycache__"
    try:
        written = files.write()
    except OSError as error:
        raise InputError(
            f"{files.folder} cannot be written: {error.strerror}. Name another folder."
        ) from error
    program = None
    try:
        # Most mistakes are here, and a process takes a second to say so.
        load_recipe(Path(words[0]), words[1:])
        program = Program(["train", *words], files.folder / OUTPUT, is_detached=detach)
        _await_start(program, place, quiet=quiet)
    except InputError as error:
        for path in [*written, *([] if has_output else [files.folder / OUTPUT])]:
            path.unlink(missing_ok=True)
            # The process has imported a function's file.
            for compiled in bytecode.glob(f"{path.stem}.*"):
                compiled.unlink()
        for folder in (bytecode, files.folder, *([place] if is_new else [])):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        # A sentence about the file of the call, as one about the call.
        said = str(error).replace(f'override "{words[-1]}": ', "").replace(f"{words[-1]}: ", "")
        raise InputError(files.as_said(said)) from error
    except KeyboardInterrupt:
        if program is not None:
            program.stop()
        raise
    return Run(place, program=program)


def _await_start(program: Program, place: Path, *, quiet: bool) -> None:
    """Returns once status.json is that of the program, or the program has ended without an error."""
    while program.is_running():
        status = read_status(place)
        if status is not None and status["pid"] == program.pid:
            return
        if not quiet:
            program.show_news()
        pause()
    if not quiet:
        program.show_news()
    program.end()


def _add_data(
    raw: dict[str, Any], data: Data | None, heldout: Data | int | None, files: CallFiles, *, is_graded: bool
) -> None:
    if isinstance(heldout, int | Integral):
        if not is_count(heldout):
            raise refusal("heldout", heldout, f"{DATA}, or a number of rows")
        if data is None or isinstance(data, str | Path | Mapping):
            raise InputError(
                f"heldout is {heldout}, but data is no list of rows, of which some could be set apart. Name "
                f"a file, or give rows."
            )
        seed = raw.get("seed", 0)
        number = int(heldout)
        data, heldout = set_apart(rows_of(data, "data"), number, seed=seed if isinstance(seed, int) else 0)
    if data is not None:
        _section(raw, "data")["train"] = source_of_data(data, "data", files, is_graded=is_graded)
    if heldout is not None:
        _section(raw, "data")["heldout"] = source_of_data(heldout, "heldout", files, is_graded=is_graded)


def _check_sections(sections: Mapping[str, Any]) -> None:
    """Raises InputError for what is neither a parameter nor a section, with the one that was meant."""
    if "run_folder" in sections:
        raise InputError("run_folder is given, but a call makes it of folder and name. Give those.")
    parameters = [name for name in inspect.signature(train).parameters if name != "sections"]
    for word in sections:
        if word not in Recipe.model_fields:
            meant = nearest_key(word, [*parameters, *Recipe.model_fields])
            known = f" It takes {', '.join(parameters)}, and keys and sections of a recipe."
            raise InputError(f"asyncrl.train has no argument {word}.{meant or known}")


def _set(raw: dict[str, Any], section: str, key: str, value: Any, argument: str) -> None:
    """Raises InputError where a section of the call says another value than its argument."""
    found = _section(raw, section)
    if key in found and found[key] != value:
        there = f"{section}.{key} is {found[key]!r}"
        raise InputError(f"{argument} is given, and {there}, too. Leave out the one that is not meant.")
    found[key] = value


def _section(raw: dict[str, Any], name: str) -> dict[str, Any]:
    found = raw.setdefault(name, {})
    if not isinstance(found, dict):
        raise InputError(f"{name} is {found!r}, expected the keys of a recipe's section as a mapping.")
    return found


def _place(folder: str | Path, name: str | None, stem: str) -> Path:
    """The run folder: of that name, or the first free one of the stem."""
    parent = expanded(Path(folder)).absolute()
    if name is not None:
        return parent / name
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return parent / f"{stem}-{number}"


def _stem(model: str | Path | Run | None, base: Path | None) -> str:
    if base is not None:
        return name_in(base)
    source = model.folder if isinstance(model, Run) else model
    return _NOT_IN_A_NAME.sub("-", Path(str(source or "run")).name.lower())[:_MOST_STEM_CHARACTERS] or "run"
