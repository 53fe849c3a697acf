"""In place of a package that SGLang's benchmark imports for one of its data sets, and the test environment has not."""


def load_dataset(*_: object, **__: object) -> object:
    raise RuntimeError("tests use random tokens only")
