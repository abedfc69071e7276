"""HTTP: entities (`atom`), messages (`data`), health, the clock, and the description of it all (`openapi`)."""
