"""One of the ranks of a pipeline that publishes from memory, again and again, in one spawn.

    python -m fakes.stage_publisher MODEL FOLDER URLS   (under torchrun's environment variables)

Rank 0 writes FOLDER/outcomes.json: of each version, server URL -> [is installed, detail].
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from fakes.recipes import make_recipe

NUM_VERSIONS = 3


def main() -> None:
    warnings.filterwarnings("ignore")
    from asyncrl.model.folder import check_model_folder
    from asyncrl.model.layout import check_layout
    from asyncrl.trainer.bootstrap import end_now
    from asyncrl.trainer.parts.table import build_learner
    from asyncrl.trainer.publishing.from_memory import BroadcastPublisher
    from asyncrl.trainer.ranks import ranks

    base, folder, urls = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    count = int(os.environ["WORLD_SIZE"])
    recipe = make_recipe(base, trainer={"num_processes": count, "parallel": {"pipeline": count}})
    shape = check_model_folder(base)
    ranks.start(threads=1, seed=0, layout=check_layout(recipe, shape))
    learner = build_learner(shape, recipe)
    learner.load_base()
    publisher = BroadcastPublisher(folder, base=base, bucket_bytes=10_000, failed=end_now)
    outcomes = []
    for version in range(NUM_VERSIONS):
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.add_(1.0)
        publication = publisher.prepare(version, learner.model)
        found = publisher.install(publication, learner.model, urls)
        outcomes.append({url: [each.is_installed, each.detail] for url, each in found.items()})
    publisher.close()
    if ranks.is_first():
        (folder / "outcomes.json").write_text(json.dumps(outcomes))
    ranks.stop()


if __name__ == "__main__":
    main()
