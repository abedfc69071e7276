"""HTTP: entities (`atom`), messages (`data`), health, the clock, and what there is (`openapi`)."""
