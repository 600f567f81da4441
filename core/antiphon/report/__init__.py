"""What the reports of applications share: figures as SVG, and the frame of a page that needs no network."""
