"""SGLang as a server's process imports it, for a `Template`: the plugin first, whose hooks replace functions
that other modules import by name."""

from sglang.srt.plugins import load_plugins

load_plugins()

import sglang.srt.entrypoints.http_server  # noqa: E402
import sglang.srt.managers.detokenizer_manager  # noqa: E402
import sglang.srt.managers.scheduler  # noqa: E402
import sglang.srt.models.registry  # noqa: E402, F401
