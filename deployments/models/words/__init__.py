"""Words in pictures: finds lines of text, turns them upright and reads them (PP-OCR)."""
