"""Language models: the `Model` protocol, and its implementation over providers' HTTP APIs."""
