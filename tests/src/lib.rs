//! End-to-end tests of farmem: helpers shared by the files under `tests/`.
