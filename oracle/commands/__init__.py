"""The commands of `kolibri-oracle`, one file each; `oracle.cli` puts them together."""
