"""``kvmap-push``: publish an export on the Hugging Face hub."""

from omegaconf import DictConfig

from kvmap.cli.command import command


@command("push")
def main(config: DictConfig) -> None:
    """Upload one export's folder."""
    from kvmap.errors import KVMapError
    from kvmap.export import find_export, push_export

    for key in ("export", "repo"):
        if config[key] is None:
            raise KVMapError(
                f"{key} is not set; kvmap-push export=<run or export folder> repo=me/name"
            )
    url = push_export(find_export(config.export), config.repo, private=config.private)
    print(f"pushed: {url}")
