"""How a release is made and priced: one module a mechanism, one door to the noise."""
