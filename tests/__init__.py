"""The test-suite; a package, so that every folder can import `tests.helpers`."""
