//! What fio writes and reads: its job files, its JSON, its terse lines. Facts of its formats only.
