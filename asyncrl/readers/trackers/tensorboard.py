"""TensorBoard: event files in RUN/trackers/tensorboard, one per start.

A start that resumes begins with what TensorBoard takes as a restart: it then hides the later steps of
earlier files. Points have the time at which the run wrote their row.
"""

import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from asyncrl.readers.trackers.tracker import Note, TrackedRun
from asyncrl.recipe import Tracker as Settings
from asyncrl.recipe.yaml_text import write_yaml


class TensorBoard:
    def __init__(self, run: TrackedRun) -> None:
        self.run_id = run.name
        folder = run.folder / "tensorboard"
        self._writer = EventFileWriter(str(folder))
        if run.run_id is None:
            recipe = write_yaml(dict(run.recipe))
            # Markdown: indented text is shown as it is.
            self._text("recipe", "".join(f"    {line}\n" for line in recipe.splitlines()), step=0)

    def log(self, values: Mapping[str, float], *, step: int, time_seconds: float) -> None:
        found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(Event(wall_time=time_seconds, step=step, summary=Summary(value=found)))
        self._writer.flush()

    def note(self, note: Note, *, step: int, time_seconds: float) -> None:
        self._text(
            note.event if note.is_alarm else f"event/{note.event}", note.text, step=step, at=time_seconds
        )

    def supersede(self, step: int) -> None:
        restart = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=restart))

    def close(self) -> None:
        self._writer.close()

    def _text(self, tag: str, text: str, *, step: int, at: float | None = None) -> None:
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        value = Summary.Value(tag=f"{tag}/text", metadata=metadata, tensor=tensor)
        self._writer.add_event(Event(wall_time=at or time.time(), step=step, summary=Summary(value=[value])))
        self._writer.flush()


def open_tracker(settings: Settings, run: TrackedRun) -> TensorBoard:
    return TensorBoard(run)
