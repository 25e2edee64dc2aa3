"""The library of the Distributed Training Workbook. Floors and contracts: see the README."""
