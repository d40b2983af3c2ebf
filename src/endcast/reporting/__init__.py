"""Plots and pages for people: self-contained HTML, readable in light and dark and on a phone."""
