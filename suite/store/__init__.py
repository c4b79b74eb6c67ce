"""Results by key, in two layers: those of this machine, and those that the project keeps."""

from suite.store.kept import Archive, Kept, Layers, archive_path, kept_layer, read_archive
from suite.store.local import Reader, Record, Store, check_folder, checksum, dump, replace_file
